"""Every name of Quark's leads to a preset, and to the very settings that Quark's own config says; its envelope."""

from __future__ import annotations

from typing import Any

import pytest

from quantmill.quark.preset_documents import CLASSES, DIFFERENCES, DOCUMENTS, FINETUNED, NAMES, translatable
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import PENDING_PRESETS, PRESETS, find_preset
from service.quark import missing_envelope, read_config, translate
from service.quark.values import BFP_DEFAULTS, MICRO_DEFAULTS, MX_DEFAULTS
from tests.support.each import each
from tests.unit.quark.comparing import settings
from tests.unit.quark.test_quark_algorithms import FAST


@each("name", sorted(DOCUMENTS))
def test_a_preset_is_what_the_config_of_quarks_says(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    translation = translate(translatable(name))
    assert settings(parse_config(translation.config)) == settings(parse_config({"preset": preset.name}))


@each("name", sorted(DIFFERENCES))
def test_differences_are_told(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    for key in DIFFERENCES[name]:
        assert any(key in note for note in preset.notes), key
        with pytest.raises(InvalidConfigError) as caught:
            translate({**DOCUMENTS[name]})
        assert f"/extra_options/{key}" in {problem.pointer for problem in caught.value.errors}


@each("name", sorted(PRESETS))
def test_the_names_of_a_preset_lead_to_it_bare_and_in_quarks_envelope(name: str) -> None:
    preset = PRESETS[name]
    wanted = parse_config({"preset": name})
    assert wanted.preset == name
    for other in (*preset.aliases, *preset.quark_names, name.upper()):
        assert parse_config({"preset": other}) == wanted
        assert read_config({"format": "quark", "config": other}) == wanted
        assert read_config({"format": "quark", "config": {"global_quant_config": other}}) == wanted


def test_every_name_of_quarks_is_offered_or_pending() -> None:
    offered = {name for name in NAMES if find_preset(name) is not None}
    assert offered == set(DOCUMENTS)
    assert {name.lower() for name in set(NAMES) - offered} == set(PENDING_PRESETS)
    for name, missing in PENDING_PRESETS.items():
        for config in ({"preset": name}, {"preset": name.upper()}, {"format": "quark", "config": name.upper()}):
            with pytest.raises(InvalidConfigError) as caught:
                read_config(config, pointer="/config")
            assert missing in caught.value.detail
            assert caught.value.errors[0].pointer == ("/config/config" if "format" in config else "/config/preset")


@each("name", sorted(FINETUNED))
def test_finetuning_is_all_that_a_preset_adds_to_the_one_below_it(name: str) -> None:
    below, algorithm = FINETUNED[name]
    whole, part = find_preset(name), find_preset(below)
    assert whole is not None and part is not None
    (entry,) = whole.settings["algorithms"]
    assert entry["method"] == algorithm
    assert {**whole.settings, "algorithms": []} == part.settings
    assert set(part.notes) < set(whole.notes)
    given = CLASSES[algorithm] if name.endswith("_QCONFIG") else FAST[algorithm]
    assert set(map(str, given.values())) - {algorithm} <= set(map(str, entry.values()))


BARE = ["QuantizationConfig", "global_quant_config", "global_config", "extra_options", "activation_type"]


@each("document", [*({key: {}} for key in BARE), {"quant_format": "QuantFormat.QDQ"}, {"enable_npu_cnn": True}])
def test_a_bare_config_is_told_its_envelope(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read_config(document)
    (problem,) = caught.value.errors
    assert problem.code == "quark-no-envelope"
    assert next(iter(document)) in problem.message
    assert '"format": "quark"' in (caught.value.hint or "")
    assert "/docs/quark.md" in (caught.value.hint or "")


def test_configs_of_ours_are_not_taken_for_quarks() -> None:
    ours = [QuantizationConfig(preset=name).model_dump(mode="json") for name in ("int8", "npu_int8")]
    ours += [PRESETS["npu_int8"].settings, {"weight": {"dtype": "int4"}, "per_channel": True}, {"activaton": {}}]
    for document in (*ours, {"preset": "int8"}, "int8"):
        assert missing_envelope(document) is None


def test_attributes_of_blocks_are_those_of_quark() -> None:
    shared = {"axis": 1, "rounding_mode": 2}
    assert {**shared, "bfp_method": "to_bfp", "bit_width": 16, "block_size": 8} == BFP_DEFAULTS
    sub_blocks = {"sub_block_size": 2, "sub_block_shift_bits": 1}
    assert {**shared, **sub_blocks, "bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 16} == MICRO_DEFAULTS
    assert {**shared, "element_dtype": "int8", "block_size": 32} == MX_DEFAULTS
