"""Presets by kind and by words."""

from __future__ import annotations

import json

import pytest

from service.contracts.config import parse_config
from service.contracts.presets import PRESETS
from service.presets.catalog import PresetNotFoundError
from service.presets.search import as_text, find, group_of, to_json


def test_every_preset_is_in_one_group() -> None:
    groups = {name: group_of(preset) for name, preset in PRESETS.items()}
    assert set(groups.values()) == {"own", "mixed", "finetuned", "quark"}
    assert groups["int8"] == groups["w4a8"] == groups["int8_accurate"] == "own"
    assert groups["a16w8_adaquant"] == "finetuned"
    assert groups["bf16_mixed_bfp16_adaquant"] == "mixed"
    assert groups["a16w8"] == "quark"


def test_all_are_listed_with_their_words() -> None:
    text = as_text(find(None), with_pending=True)
    assert text.index("Presets of ours:") < text.index("mixed precision:") < text.index("Not offered:")
    for preset in PRESETS.values():
        assert preset.name in text
        assert preset.description in text
        for word in (*preset.aliases, *preset.quark_names, *preset.notes):
            assert word in text


def test_a_name_finds_one_and_words_all_that_have_every_one_of_them() -> None:
    for search in ("A16W8_ADAQUANT", "a16w8_adaquant"):
        assert [one.preset.name for one in find(search)] == ["a16w8_adaquant"]
    found = {one.preset.name for one in find("AMD npu")}
    assert {"npu_int8", "npu_int8_accurate"} <= found and "int8" not in found
    with pytest.raises(PresetNotFoundError):
        find("nothing of that kind")


def test_json_is_whole() -> None:
    items = json.loads(to_json(find("int8")))["items"]
    (item,) = items
    assert (item["name"], item["group"], item["default"]) == ("int8", "own", True)
    assert parse_config(item["config"]) == parse_config({"preset": "int8"})
    assert len(json.loads(to_json(find(None)))["items"]) == len(PRESETS)
