"""The configs of docs/weights.md are ones, and its table names presets that there are."""

from __future__ import annotations

import json
import re

import pytest

from service.contracts.config import parse_config
from service.contracts.presets import PRESETS
from tests.docs.blocks import ROOT, fenced

PAGE = ROOT / "docs" / "weights.md"


@pytest.mark.parametrize("document", fenced(PAGE, "json"))
def test_every_config_is_one(document: str) -> None:
    config = parse_config(json.loads(document))
    assert config.mode == "weights_only" or config.has_halfs


def test_the_presets_are_there() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(named) == 4
    for name in named:
        mode = PRESETS[name].settings["mode"]
        assert mode in ("weights_only", "dynamic")
        assert bool(PRESETS[name].settings["algorithms"]) == (name == "int4_weights_accurate")
