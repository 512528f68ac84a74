"""``--json``: every command has it that prints what a script would read, and it gives what the service gives."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.main import get_command

from service.contracts.version import VERSION
from service.jobs.schemas import JobListed
from service.keys.files import LOCAL_KEY_FILE
from tests.cli.conftest import Quantmill
from worker import cli
from worker.commands.json_output import plain, print_items, print_line

WITHOUT = {
    "up": "runs until it is stopped",
    "api": "runs until it is stopped",
    "worker": "runs until it is stopped",
    "reconcile": "runs until it is stopped; with --once it prints JSON",
    "migrate": "its exit code tells all",
    "demo": "is there to be looked at",
    "quantize": "gives files: --report is its JSON",
    "evaluate": "prints JSON, and nothing else",
    "provenance": "prints JSON, and nothing else",
    "dequantize": "gives a file",
}


def commands() -> Iterator[tuple[str, set[str]]]:
    """Every command with the options that it has."""

    def walk(name: str, command: object) -> Iterator[tuple[str, set[str]]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield name, {option for parameter in command.params for option in parameter.opts}  # type: ignore[attr-defined]
            return
        for word, inner in below.items():
            yield from walk(f"{name} {word}".strip(), inner)

    return walk("", get_command(cli.app))


def test_every_command_has_it_or_a_reason() -> None:
    found = dict(commands())
    assert len(found) > 60
    assert {name for name, options in found.items() if "--json" not in options} == set(WITHOUT)


def test_fields_have_the_names_that_the_service_gives_them(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {
        "metrics": [{"name": "top1", "unit": "%", "float": 90.0, "quantized": 89.5, "drop": 0.5}],
        "sqnr_db": 20.0,
        "top1_agreement": None,
        "float_size_bytes": 4,
        "quantized_size_bytes": 1,
        "latency_ratio": None,
    }
    outline = JobListed.model_fields["figures"].annotation.__args__[0].model_validate(figures)  # type: ignore[union-attr]
    assert plain(outline)["metrics"][0] == figures["metrics"][0]  # type: ignore[index]
    print_items([outline], has_more=False)
    assert set(json.loads(capsys.readouterr().out)) == {"items", "has_more"}
    print_line({"text": "\x9b1m"})
    assert capsys.readouterr().out == '{"text": "\\u009b1m"}\n'


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("version",), {"version"}),
        (("targets",), {"items"}),
        (("targets", "onnxruntime_cpu"), {"name", "description", "default", "options"}),
        (("presets",), {"items"}),
        (("doctor", "--no-engine"), {"ok", "items"}),
        (("tenants", "set", "vision", "jobs_running=2"), {"tenant", "own", "quota", "usage"}),
        (("keys", "list"), {"items"}),
        (("audit", "list"), {"items"}),
    ],
)
def test_what_needs_no_service(quantmill: Quantmill, tmp_path, words: tuple[str, ...], keys: set[str]) -> None:
    done = quantmill(*words, "--json", QUANTMILL_DATA_DIR=str(tmp_path / "home"))
    told = json.loads(done.stdout)
    assert keys <= set(told), done.stderr
    assert told.get("version", VERSION) == VERSION


@pytest.mark.parametrize("noun", ["jobs", "models", "datasets", "batches"])
def test_long_lists_are_read_to_their_end(quantmill: Quantmill, noun: str) -> None:
    refused = quantmill(noun, "list", "--limit", "10001", "--server", "http://127.0.0.1:9")
    assert (refused.returncode, "10000" in refused.stderr) == (2, True)
    asked = quantmill(noun, "list", "--limit", "10000", "--server", "http://nobody.invalid:9", "--key", "k")
    assert "--limit" not in asked.stderr


def test_a_key_that_is_revoked(quantmill: Quantmill, tmp_path) -> None:
    home = {"QUANTMILL_DATA_DIR": str(tmp_path / "home")}
    made = json.loads(quantmill("keys", "create", "ci", "--json", **home).stdout)
    assert json.loads(quantmill("keys", "revoke", made["id"], "--json", **home).stdout) == {
        "id": made["id"],
        "revoked": True,
    }
    (listed,) = json.loads(quantmill("keys", "list", "--json", **home).stdout)["items"]
    assert listed["state"] == "revoked"


def test_without_a_stored_key_the_own_one_is_told(quantmill: Quantmill, tmp_path) -> None:
    home = tmp_path / "home"
    place = {"QUANTMILL_DATA_DIR": str(home)}
    assert quantmill("keys", "list", **place).stdout == "There are no keys.\n"
    (home / LOCAL_KEY_FILE).write_text("secret\n")
    said = quantmill("keys", "list", **place).stdout
    assert str(home / LOCAL_KEY_FILE) in said
    assert "secret" not in said
    assert "QUANTMILL_API_KEY" in quantmill("keys", "list", **place, QUANTMILL_API_KEY="of-these-tests").stdout
