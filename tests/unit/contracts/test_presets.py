"""Presets: every name of Quark's leads somewhere, and to the very settings that Quark's own config says."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from service.contracts.algorithms import Algorithm
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import PENDING_PRESETS, PRESETS, find_preset, missing_preset
from service.contracts.presets.pending import PENDING_NEEDS
from service.contracts.quark import translate
from service.presets import catalog
from tests.unit.contracts.quark_documents import DIFFERENCES, DOCUMENTS, NAMES, translatable


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
    assert offered == set(DOCUMENTS)
    assert {name.lower() for name in set(NAMES) - offered} == set(PENDING_PRESETS)


@pytest.mark.parametrize("name", sorted(PENDING_PRESETS))
def test_asking_for_a_pending_preset_tells_what_is_missing(name: str) -> None:
    for spelled in (name, name.upper()):
        for document in ({"preset": spelled}, {"format": "quark", "config": spelled}):
            with pytest.raises(InvalidConfigError) as caught:
                parse_config(document, pointer="/config")
            assert PENDING_PRESETS[name] in caught.value.detail
            assert caught.value.errors[0].pointer in ("/config/preset", "/config/config")


def methods(union: Any) -> Iterator[str]:
    """The methods of a model, of a union of models, or of an annotated union."""
    if isinstance(union, type):
        yield union.model_fields["method"].default
    else:
        for member in typing.get_args(union):
            if not isinstance(member, FieldInfo):
                yield from methods(member)


def test_presets_do_not_wait_for_algorithms_that_are_there() -> None:
    there = set(methods(Algorithm))
    waited_for = {word for needs in PENDING_NEEDS for word in needs.split(" and ")}
    assert not waited_for & there, "write these presets: what they waited for is there"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("A8W9", "did you mean 'a8w8'?"),
        ("XINT8_ADAROUNDED", "did you mean 'xint8_adaround"),
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
    refused = CliRunner().invoke(app, ["presets", "a16w8_adaround"])
    assert isinstance(refused.exception, catalog.PresetNotFoundError)
    assert "adaround" in refused.exception.detail
