"""Models and datasets of a service on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.datasets.schemas import DatasetOut
from service.models.schemas import ModelOut
from service.names.aliases.schemas import AliasOut
from worker.commands.console import make_console

_STYLES = {"ready": "green", "rejected": "red", "validating": "bold"}


def print_nouns(word: str, nouns: Iterable[ModelOut | DatasetOut], console: Console | None = None) -> None:
    """One line each."""
    table = Table(word, "name", "version", "status", "tags", "created")
    table.columns[0].no_wrap = True  # an id is there to be copied
    for noun in nouns:
        table.add_row(
            noun.id, Text(noun.name), str(noun.version), _status(noun), Text(_tags(noun)), _moment(noun.created_at)
        )
    (console or make_console()).print(table)


def print_noun(word: str, noun: ModelOut | DatasetOut, aliases: Sequence[str], console: Console | None = None) -> None:
    """What is known of one."""
    console = console or make_console()
    lines: list[tuple[str, str | Text]] = [
        (word, noun.id),
        ("name", noun.name),
        ("version", str(noun.version)),
        ("aliases", ", ".join(aliases) or "-"),
        ("status", _status(noun)),
        ("format", noun.format),
        ("tags", _tags(noun) or "-"),
        ("said", noun.description or "-"),
        ("created", _moment(noun.created_at)),
        *_files(noun),
    ]
    lines += [("problem", f"[{problem.code}] {problem.detail}") for problem in noun.problems]
    for name, value in lines:
        console.print(Text.assemble(f"{name:<10}", value), soft_wrap=True)


def print_aliases(aliases: Iterable[AliasOut], console: Console | None = None) -> None:
    """One line each."""
    table = Table("alias", "name", "version", "id", "moved by", "at")
    table.columns[3].no_wrap = True
    for alias in aliases:
        table.add_row(
            alias.alias, Text(alias.name), str(alias.version), alias.id, alias.updated_by, _moment(alias.updated_at)
        )
    (console or make_console()).print(table)


def _files(noun: ModelOut | DatasetOut) -> list[tuple[str, str | Text]]:
    if isinstance(noun, DatasetOut):
        return [("file", f"{noun.sha256}  {noun.size_bytes} bytes")]
    return [("file", f"{file.sha256}  {file.path}, {file.size_bytes} bytes") for file in noun.files]


def _status(noun: ModelOut | DatasetOut) -> Text:
    return Text(noun.status, style=_STYLES.get(noun.status, ""))


def _tags(noun: ModelOut | DatasetOut) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(noun.tags.items()))


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
