"""``--json``: every command has it that prints what a script would read, and it gives what the service gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from service.contracts.base import VERSION
from service.jobs.schemas import JobListed
from service.keys.files import LOCAL_KEY_FILE
from tests.cli.conftest import NOWHERE, Quantmill
from worker import cli
from worker.commands.printing import plain, print_items, print_line

WITHOUT = {
    "up": "runs until it is stopped", "api": "runs until it is stopped", "worker": "runs until it is stopped",
    "reconcile": "runs until it is stopped; with --once it prints JSON",
    "demo": "is there to be looked at", "quantize": "gives files: --report is its JSON",
    "evaluate": "prints JSON, and nothing else", "provenance": "prints JSON, and nothing else",
    "dequantize": "gives a file",
}  # fmt: skip


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
    assert {name for name, options in commands() if "--json" not in options} == set(WITHOUT)


def test_fields_have_the_names_that_the_service_gives_them(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {
        "metrics": [{"name": "top1", "unit": "%", "float": 90.0, "quantized": 89.5, "drop": 0.5}],
        "sqnr_db": 20.0, "top1_agreement": None, "float_size_bytes": 4, "quantized_size_bytes": 1,
        "latency_ratio": None,
    }  # fmt: skip
    outline = JobListed.model_fields["figures"].annotation.__args__[0].model_validate(figures)  # type: ignore[union-attr]
    assert figures["metrics"][0].items() <= plain(outline)["metrics"][0].items()  # type: ignore[index]
    print_items([outline], has_more=False)
    assert set(json.loads(capsys.readouterr().out)) == {"items", "has_more"}
    print_line({"text": "\x9b1m"})
    assert capsys.readouterr().out == '{"text": "\\u009b1m"}\n'


@pytest.fixture
def home(tmp_path: Path, _sqlite_template: Path) -> Path:
    """A data directory with a migrated database."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copyfile(_sqlite_template, folder / "service.db")
    return folder


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("version",), {"version"}),
        (("targets",), {"items"}),
        (("targets", "onnxruntime_cpu"), {"name", "description", "default", "options"}),
        (("presets",), {"items"}),
        (("doctor", "--no-engine"), {"ok", "items"}),
        (("tenants", "set", "vision", "jobs_running=2"), {"tenant", "own", "quota", "usage"}),
    ],
)
def test_what_needs_no_service(quantmill: Quantmill, home: Path, words: tuple[str, ...], keys: set[str]) -> None:
    done = quantmill(*words, "--json", QUANTMILL_DATA_DIR=str(home))
    told = json.loads(done.stdout)
    assert keys <= set(told), done.stderr
    assert told.get("version", VERSION) == VERSION


@pytest.mark.parametrize("noun", ["jobs", "models", "datasets", "batches"])
def test_long_lists_are_read_to_their_end(quantmill: Quantmill, noun: str) -> None:
    asked = quantmill(noun, "list", "--limit", "10000", "--server", NOWHERE, "--key", "k", code=1)
    assert "error[server-unreachable]" in asked.stderr
    assert "--limit" not in asked.stderr


def test_keys_are_made_listed_and_revoked(quantmill: Quantmill, home: Path) -> None:
    there = {"QUANTMILL_DATA_DIR": str(home)}
    assert quantmill("keys", "list", **there).stdout == "No keys yet.\n"
    own = home / LOCAL_KEY_FILE
    own.write_text("secret\n")
    said = quantmill("keys", "list", **there).stdout
    assert str(own) in said
    assert "secret" not in said
    assert "QUANTMILL_API_KEY" in quantmill("keys", "list", **there, QUANTMILL_API_KEY="of-these-tests").stdout
    made = json.loads(quantmill("keys", "create", "ci", "--json", **there).stdout)
    revoked = json.loads(quantmill("keys", "revoke", made["id"], "--json", **there).stdout)
    assert revoked == {"id": made["id"], "revoked": True}
    (listed,) = json.loads(quantmill("keys", "list", "--json", **there).stdout)["items"]
    assert listed["state"] == "revoked"
