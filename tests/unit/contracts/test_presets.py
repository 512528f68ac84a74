"""Presets: every name leads to one, and a preset says what it does."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from service.cli import register
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.data_checks import check_data_given
from service.contracts.errors import CalibrationMissingError
from service.contracts.presets import PENDING_PRESETS, PRESETS, find_preset, missing_preset
from service.presets import catalog
from tests.support.each import each


def test_the_solver_alone_can_be_changed() -> None:
    for name in ("xint8_adaround", "XINT8_ADAROUND_QCONFIG", "INT8_CNN_ACCURATE"):
        plain = parse_config({"preset": name}).algorithms[0]
        (changed,) = parse_config(
            {"preset": name, "algorithms": [{"method": "adaround", "solver": "gradient"}]}
        ).algorithms
        assert plain.model_dump() == {**changed.model_dump(), "solver": "moments"}
        assert changed.model_dump()["fixed_seed"] == 1705472343
        assert any("solver gradient" in note for note in PRESETS[name.lower()].notes)


@each(("preset", "method"), [("int8", "smooth_quant"), ("npu_int8", "adaround")])
def test_a_step_of_a_preset_that_waits_for_a_loss_runs_always_where_a_config_names_it(preset: str, method: str) -> None:
    def conditions(config: QuantizationConfig) -> list[str]:
        return [algorithm.when for algorithm in config.algorithms if algorithm.method == method]

    waiting = parse_config({"preset": preset})
    assert conditions(waiting) == conditions(parse_config(waiting.model_dump(mode="json"))) == ["loss"]
    assert conditions(parse_config({"preset": preset, "algorithms": [{"method": method}]})) == ["always"]


RANGELESS = {
    name
    for name, preset in PRESETS.items()
    if preset.settings.get("mode", "static") != "static"
    and not any(algorithm.cannot_do_without_data for algorithm in QuantizationConfig(preset=name).algorithms)
}


@each("name", list(PRESETS))
def test_only_recipes_that_take_ranges_or_learn_ask_for_data(name: str) -> None:
    assert {"int8_dynamic", "int8_weights", "int4_weights", "float16_model"} <= RANGELESS
    config = QuantizationConfig(preset=name)
    if name in RANGELESS or config.random_calibration is not None:
        check_data_given(config, calibration=False, evaluation=False)
    else:
        with pytest.raises(CalibrationMissingError):
            check_data_given(config, calibration=False, evaluation=False)


@each(("name", "says"), [("A8W9", "did you mean 'a8w8'?"), ("qqqqqqq", "recommended: int8, ")])
def test_unknown_names(name: str, says: str) -> None:
    assert find_preset(name) is None
    assert says in missing_preset(name)


def test_what_runs_natively() -> None:
    native = {name for name, preset in PRESETS.items() if preset.execution.native}
    assert {"int8", "a8w8", "u8u8_aawa", "uint8_dynamic_quant"} <= native
    assert not native & {"a16w8", "bf16", "mx9", "mxfp8_e4m3", "fp16", "matmul_nbits", "xint8", "vint8"}
    for preset in PRESETS.values():
        assert preset.execution.statement


def test_the_command_lists_and_shows_presets() -> None:
    app = typer.Typer()
    register(app)
    listed = CliRunner().invoke(app, ["presets", "--all"])
    assert listed.exit_code == 0
    assert {line.split()[0] for line in listed.stdout.splitlines() if line.strip()} >= {*PRESETS, *PENDING_PRESETS}
    shown = CliRunner().invoke(app, ["presets", "A16W8"])
    assert shown.stdout.splitlines()[0] == "a16w8"
    for note in PRESETS["a16w8"].notes:
        assert note in shown.stdout
    refused = CliRunner().invoke(app, ["presets", "XINT8_WEIGHTSONLY_ADAROUND"])
    assert isinstance(refused.exception, catalog.PresetNotFoundError)
    assert "weights_only" in refused.exception.detail
