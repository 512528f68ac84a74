"""``--help`` of every command: in groups, short, and shown as it is written."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from service.contracts.presets import PRESETS, RECOMMENDED
from tests.cli.conftest import Quantmill, words
from tests.support.each import each
from worker import cli
from worker.commands.panels import PANELS

WIDE = {"COLUMNS": "400", "NO_COLOR": "1", "TERMINAL_WIDTH": "400"}
# Words that texts for users leave out.
STALE = (
    "asked for",
    " bears ",
    " told",
    "tells",
    "deeds",
    "by the clock",
    "stands",
    " lies ",
    "is gone",
    "of its own",
    "yardstick",
)


# Built once: typer would build it anew for every command that is run.
TREE: Any = get_command(cli.app)


def commands() -> Iterator[tuple[str, Any]]:
    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for word, inner in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {word}".strip(), inner)

    return walk("", TREE)


COMMANDS = dict(commands())


def plain(text: str) -> str:
    """A help text as it was written: what is declared is escaped for rich."""
    return " ".join(text.replace("\\[", "[").split())


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without colours that breaks no line."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)


@each("name", COMMANDS)
def test_help_shows_every_text_as_it_is_written(name: str, wide: None) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        TREE.main([*name.split(), "--help"], prog_name="quantmill", standalone_mode=False)
    shown = words(out.getvalue())
    command = COMMANDS[name]
    parts = [
        one
        for one in (*command.params, *getattr(command, "commands", {}).values())
        if not getattr(one, "hidden", False)
    ]
    texts = [command.help, *(getattr(one, "help", None) for one in parts)]
    assert [text for text in texts if text and plain(text) not in shown] == []
    assert "\\[" not in shown


def test_square_brackets_are_shown(quantmill: Quantmill) -> None:
    assert "quantmill[mlflow]" in words(quantmill("jobs", "--help", code=0, **WIDE).stdout)


def test_a_command_says_what_it_does_in_a_line() -> None:
    said = {name: one.help.strip() for name, one in COMMANDS.items()}
    assert {name: text for name, text in said.items() if len(text) > 100 or "\n" in text or text[-1] != "."} == {}


def test_help_is_in_the_words_of_the_project() -> None:
    texts = [getattr(one, "help", None) or "" for command in COMMANDS.values() for one in (command, *command.params)]
    assert [text for text in texts if any(stale in text for stale in STALE)] == []


def test_commands_stand_in_their_groups(quantmill: Quantmill) -> None:
    shown = quantmill("--help", code=0, **WIDE).stdout
    groups = re.findall(r"╭─ (\w+) ", shown)
    assert groups == ["Options", *PANELS]
    listed = [name for names in PANELS.values() for name in names]
    assert sorted(listed) == sorted(name for name, one in COMMANDS[""].commands.items() if not one.hidden)
    assert re.findall(r"^│ ([a-z][a-z-]*) ", shown, re.MULTILINE) == listed


def test_the_recommended_presets_are_named_and_the_rest_is_listed_elsewhere(quantmill: Quantmill) -> None:
    shown = words(quantmill("quantize", "--help", code=0, **WIDE).stdout)
    assert f"{', '.join(RECOMMENDED)}, ..." in shown
    assert "`quantmill presets --all` lists all" in shown
    assert "s8s8_aaws" not in shown


def test_presets_lists_the_recommended_first_and_all_others_in_groups(quantmill: Quantmill) -> None:
    shown = quantmill("presets", "--all", code=0).stdout
    lines = shown.splitlines()
    assert lines[0] == "Recommended:"
    assert [line.split()[0] for line in lines[1 : 1 + len(RECOMMENDED)]] == list(RECOMMENDED)
    assert all(said in shown for said in RECOMMENDED.values())
    first_words = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert {name for name in PRESETS if first_words.count(name) != 1} == set()
