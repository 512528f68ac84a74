"""Graphs that a config names by path: their bytes are put in place, as a config is sent to where the files are not."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from service.contracts.errors import InvalidConfigError
from service.contracts.metrics.graph import MAX_INLINE_BYTES


def with_graphs(document: Any, folder: Path) -> Any:
    """The document with the files of metrics and losses that are given as graphs by path, from ``folder`` on, in place.

    Raises:
        InvalidConfigError: a file cannot be read, or is too large.
    """
    if not isinstance(document, dict):
        return document
    filled = dict(document)
    if isinstance(evaluation := document.get("evaluation"), dict):
        filled["evaluation"] = _with_files(evaluation, "metrics", folder, "/evaluation")
    if isinstance(algorithms := document.get("algorithms"), list):
        filled["algorithms"] = [
            _with_files(entry, "losses", folder, f"/algorithms/{k}") for k, entry in enumerate(algorithms)
        ]
    return filled


def _with_files(holder: Any, key: str, folder: Path, pointer: str) -> Any:
    """``holder`` with the graphs of what it lists under ``key``; left as it is where it lists nothing."""
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        return holder
    listed = [_with_graph(entry, folder, f"{pointer}/{key}/{k}/graph") for k, entry in enumerate(holder[key])]
    return {**holder, key: listed}


def _with_graph(given: Any, folder: Path, pointer: str) -> Any:
    graph = given.get("graph") if isinstance(given, dict) else None
    if not isinstance(graph, dict) or not isinstance(graph.get("path"), str):
        return given
    path = folder / graph["path"]
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_INLINE_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(
            f"the graph cannot be read: {path}: {error.strerror}",
            pointer=f"{pointer}/path",
            hint="Paths are relative to the folder of the config's file; in Python, to the current folder.",
        ) from None
    if len(data) > MAX_INLINE_BYTES:
        raise InvalidConfigError(
            f"the graph is larger than {MAX_INLINE_BYTES} bytes: {path}",
            pointer=f"{pointer}/path",
            hint="Upload it as a model to a service, and give its model_id.",
        )
    rest = {key: value for key, value in graph.items() if key != "path"}
    return {**given, "graph": {**rest, "base64": base64.b64encode(data).decode()}}
