"""Resolved configs, comparable."""

from __future__ import annotations

import json
from typing import Any

from service.contracts.config import QuantizationConfig


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
