"""What becomes of Quark's documents: resolved configs, comparable; notes and problems by their pointer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quantmill.quark.preset_documents import tensor
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError
from service.quark import read_config, translate

INT8 = tensor("Int8", method="MinMax")


def settings(config: QuantizationConfig) -> dict[str, Any]:
    """The config without the name of its preset, and without what has no meaning for its types."""
    found = json.loads(config.model_dump_json(exclude={"preset"}))
    for level in (found, *(entry.get(word) for entry in found["algorithms"] for word in ("high", "low"))):
        for side in ("activation", "weight") if level else ():
            if not level[side]["dtype"].removeprefix("u").startswith("int"):
                level[side] = {"dtype": level[side]["dtype"]}
    if found["mode"] == "weights_only":
        del found["activation"]
    return found


def extra(**options: Any) -> dict[str, Any]:
    """A QuantizationConfig with these options."""
    return {"extra_options": options}


def algorithms(data: Any) -> list[dict[str, Any]]:
    """The algorithms of the config that ``data`` is translated to, in full."""
    return [algorithm.model_dump(mode="json") for algorithm in parse_config(translate(data).config).algorithms]


def notes(data: Any) -> dict[str, str]:
    """Words by pointer; of several at one place all."""
    found: dict[str, str] = {}
    for note in translate(data).notes:
        found[note.pointer] = f"{found.get(note.pointer, '')} {note.message}".strip()
    return found


def problems(data: Any) -> dict[str, str]:
    """Words by pointer into ``data``."""
    with pytest.raises(InvalidConfigError) as caught:
        read_config({"format": "quark", "config": data})
    return {problem.pointer.removeprefix("/config"): problem.message for problem in caught.value.errors}
