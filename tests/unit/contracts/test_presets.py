"""Presets: every name of Quark's leads somewhere, and to the very settings that Quark's own config says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from service.contracts.algorithms import MixedPrecision
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import PENDING_PRESETS, PRESETS, Preset, find_preset, missing_preset
from service.contracts.presets.mixed import MIXED_PRESETS
from service.contracts.presets.own import ALGORITHMS, OWN_PRESETS
from service.contracts.quark import translate
from service.presets import catalog
from tests.unit.contracts.quark_documents import CLASSES, DIFFERENCES, DOCUMENTS, FAST, FINETUNED, NAMES, translatable


def settings(config: QuantizationConfig) -> dict[str, Any]:
    """The config without the name of its preset, and without what has no meaning for its types."""
    found = json.loads(config.model_dump_json(exclude={"preset"}))
    for side in ("activation", "weight"):
        if not found[side]["dtype"].removeprefix("u").startswith("int"):
            found[side] = {"dtype": found[side]["dtype"]}
    if found["mode"] == "weights_only":
        del found["activation"]
    return found


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_preset_is_what_the_config_of_quarks_says(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    translation = translate(translatable(name))
    assert settings(parse_config(translation.config)) == settings(parse_config({"preset": preset.name}))


@pytest.mark.parametrize("name", sorted(DIFFERENCES))
def test_differences_are_told(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    for key in DIFFERENCES[name]:
        assert any(key in note for note in preset.notes), key
        with pytest.raises(InvalidConfigError) as caught:
            translate({**DOCUMENTS[name]})
        assert f"/extra_options/{key}" in {problem.pointer for problem in caught.value.errors}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_names_of_a_preset_lead_to_it_and_back(name: str) -> None:
    preset = PRESETS[name]
    wanted = parse_config({"preset": name})
    assert wanted.preset == name
    for other in (*preset.aliases, *preset.quark_names, name.upper()):
        assert parse_config({"preset": other}) == wanted
        assert parse_config({"format": "quark", "config": other}) == wanted
        assert parse_config({"format": "quark", "config": {"global_quant_config": other}}) == wanted


def test_no_two_presets_share_a_name() -> None:
    names = [name for p in PRESETS.values() for name in {n.casefold() for n in (p.name, *p.aliases, *p.quark_names)}]
    assert len(names) == len(set(names))
    assert not set(names) & set(PENDING_PRESETS)


def test_every_name_of_quarks_is_offered_or_pending() -> None:
    offered = {name for name in NAMES if find_preset(name) is not None}
    assert offered == set(DOCUMENTS) | {preset.name.upper() for preset in MIXED_PRESETS}
    assert {name.lower() for name in set(NAMES) - offered} == set(PENDING_PRESETS)


@pytest.mark.parametrize("preset", MIXED_PRESETS, ids=lambda preset: preset.name)
def test_mixed_presets_begin_at_their_higher_level_and_tell_of_the_goal(preset: Preset) -> None:
    config = parse_config({"preset": preset.name})
    mixing, *rest = config.algorithms
    assert isinstance(mixing, MixedPrecision)
    assert (mixing.high.activation, mixing.high.weight) == (config.activation, config.weight)
    high, _, low = preset.name.removesuffix("_adaquant").partition("_mixed_")
    words = {"s16s16": ("int16", "int16"), "s8s8": ("int8", "int8"), "bf16": ("bfloat16", "bfloat16")}
    dtypes = [(level.activation.dtype, level.weight.dtype) for level in (mixing.high, mixing.low)]
    assert dtypes == [words[high], words.get(low, (low, low))]
    assert [algorithm.method for algorithm in rest] == (["adaquant"] if preset.name.endswith("adaquant") else [])
    assert any("25 dB" in note for note in preset.notes)


@pytest.mark.parametrize("name", sorted(PENDING_PRESETS))
def test_asking_for_a_pending_preset_tells_what_is_missing(name: str) -> None:
    for spelled in (name, name.upper()):
        for document in ({"preset": spelled}, {"format": "quark", "config": spelled}):
            with pytest.raises(InvalidConfigError) as caught:
                parse_config(document, pointer="/config")
            assert PENDING_PRESETS[name] in caught.value.detail
            assert caught.value.errors[0].pointer in ("/config/preset", "/config/config")


@pytest.mark.parametrize("name", sorted(FINETUNED))
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


def test_the_solver_alone_can_be_changed() -> None:
    for name in ("xint8_adaround", "XINT8_ADAROUND_QCONFIG", "INT8_CNN_ACCURATE"):
        plain = parse_config({"preset": name}).algorithms[0]
        (changed,) = parse_config(
            {"preset": name, "algorithms": [{"method": "adaround", "solver": "gradient"}]}
        ).algorithms
        assert plain.model_dump() == {**changed.model_dump(), "solver": "gram"}
        assert changed.model_dump()["fixed_seed"] == 1705472343
        assert any("solver gradient" in note for note in PRESETS[name.lower()].notes)


def test_what_runs_in_presets_of_ours_stands_in_one_place() -> None:
    for preset in OWN_PRESETS:
        assert preset.settings["algorithms"] == list(ALGORITHMS.get(preset.name, ()))
        for algorithm in preset.settings["algorithms"]:
            assert algorithm["method"].split("_")[0] in preset.description.lower().replace("cross-", "cross_")
    assert set(ALGORITHMS) <= {preset.name for preset in OWN_PRESETS}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("A8W9", "did you mean 'a8w8'?"),
        ("XINT8_ADAROUNDED", "did you mean 'xint8_adaround'?"),
        ("qqqqqqq", "GET /v1/presets list all"),
    ],
)
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
    import typer

    from service.cli import register

    app = typer.Typer()
    register(app)
    listed = CliRunner().invoke(app, ["presets"])
    assert listed.exit_code == 0
    assert {line.split()[0] for line in listed.stdout.splitlines() if line.strip()} >= {*PRESETS, *PENDING_PRESETS}
    shown = CliRunner().invoke(app, ["presets", "A16W8"])
    assert shown.stdout.splitlines()[0] == "a16w8"
    for note in PRESETS["a16w8"].notes:
        assert note in shown.stdout
    refused = CliRunner().invoke(app, ["presets", "XINT8_WEIGHTSONLY_ADAROUND"])
    assert isinstance(refused.exception, catalog.PresetNotFoundError)
    assert "weights_only" in refused.exception.detail
