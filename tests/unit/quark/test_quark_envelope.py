"""A Quark config that stands where a config of ours does is recognised, and told where it goes."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import PRESETS
from service.quark import missing_envelope, read_config

BARE: list[dict[str, Any]] = [
    {"QuantizationConfig": {"per_channel": True}},
    {"global_quant_config": {"per_channel": True}},
    {"global_config": {"weight": {}}},
    {"activation_type": "QuantType.QUInt8"},
    {"quant_format": "QuantFormat.QDQ", "calibrate_method": "CalibrationMethod.MinMax"},
    {"extra_options": {"AlignConcat": True}},
    {"enable_npu_cnn": True, "include_cle": True},
]


@pytest.mark.parametrize("document", BARE, ids=lambda document: next(iter(document)))
def test_a_bare_config_is_told_its_envelope(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read_config(document)
    (problem,) = caught.value.errors
    assert problem.code == "quark-no-envelope"
    assert next(iter(document)) in problem.message
    assert '"format": "quark"' in (caught.value.hint or "")
    assert "/docs/quark.md" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["int8", "npu_int8"])
def test_configs_of_ours_are_not_taken_for_quarks(name: str) -> None:
    assert missing_envelope({"preset": name}) is None
    assert missing_envelope(QuantizationConfig(preset=name).model_dump(mode="json")) is None
    assert missing_envelope({"weight": {"dtype": "int4"}, "per_channel": True}) is None
    assert missing_envelope(PRESETS[name].settings) is None
    assert missing_envelope("int8") is None
    assert missing_envelope({"activaton": {}}) is None
