"""Reports of earlier versions, brought to today's: stored reports are never rewritten, only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPORT_SCHEMA_VERSION = 2


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A report's document in today's version.

    Args:
        document: of any version; one without a number is taken as it is, as is one of a version still to come.
    """
    version = document.get("schema_version")
    while isinstance(version, int) and version in _STEPS:
        document = _STEPS[version](document)
        version = document["schema_version"]
    return document


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Rows of layers name their nodes; what was not measured then stays unknown."""
    layers = document.get("layers")
    if isinstance(layers, list | tuple):
        document = {**document, "layers": [_with_nodes(row) for row in layers]}
    return {**document, "schema_version": 2}


def _with_nodes(row: Any) -> Any:
    return {"nodes": [row["name"]], **row} if isinstance(row, dict) and "name" in row else row


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
