"""Batches on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from service.batches.schemas import BatchCounts, BatchListed, BatchMemberOut, BatchOut
from worker.commands.console import NARROW, duration_words, make_console
from worker.commands.figures import bytes_words, figure, number

_STYLES = {"succeeded": "green", "failed": "red", "canceled": "yellow", "canceling": "yellow", "running": "bold"}
_COLUMNS = ("", "state", "model", "preset", "config", "result", "size", "took", "job")
_STATES = ("queued", "running", "canceling", "succeeded", "failed", "canceled", "gone")


def print_batches(batches: Iterable[BatchListed], console: Console | None = None) -> None:
    """One line per batch."""
    table = Table("batch", "state", "members", "name", "created")
    table.columns[0].no_wrap = True  # an id is there to be copied
    for batch in batches:
        created = batch.created_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        table.add_row(batch.id, _state(batch.state), _counts(batch.counts), Text(batch.name or ""), created)
    (console or make_console()).print(table)


def print_batch(batch: BatchOut, console: Console | None = None) -> None:
    """Every member with what became of it, the best of each model, and why members failed."""
    console = console or make_console()
    name = f" {batch.name}" if batch.name else ""
    console.print(
        Text.assemble(f"{batch.id}{name} is ", _state(batch.state), f": {_counts(batch.counts)}"), soft_wrap=True
    )
    whole = ("state", "took", "job")
    table = Table(*(Column(name, overflow="fold", no_wrap=name in whole) for name in _COLUMNS), **NARROW)
    for member in batch.members:
        table.add_row(*_cells(member))
    console.print(table)
    for best in batch.best:
        told = "" if best.metric is None else f", {best.metric} {_number(best.value)} (drop {_number(best.drop)})"
        console.print(Text(f"best of {best.model}: member {best.member}{told}"), soft_wrap=True)
    for member in batch.members:
        if member.error is not None:
            told = f"member {member.member} failed: [{member.error.code}] {member.error.detail}"
            console.print(Text(told, style="red"), soft_wrap=True)


def _cells(member: BatchMemberOut) -> list[str | Text]:
    model = member.model if member.model_name is None else f"{member.model_name}@{member.model_version}"
    return [
        str(member.member),
        _state(member.state),
        Text(model),
        Text(member.preset or ""),
        "" if member.config is None else str(member.config),
        Text(_result(member)),
        "" if member.size_bytes is None else bytes_words(member.size_bytes),
        "" if member.seconds is None else duration_words(member.seconds),
        member.job_id,
    ]


def _result(member: BatchMemberOut) -> str:
    """The verdict of its gate, if it has one, and its first figure with the drop; of a failure its code."""
    if member.error is not None:
        return member.error.code
    verdict = "" if member.verdict in (None, "none") else f"{member.verdict} "
    if member.figures is None:
        return verdict
    if not member.figures.metrics:
        return verdict + ("" if member.figures.sqnr_db is None else f"SQNR {number(member.figures.sqnr_db, 'dB')}")
    first = member.figures.metrics[0]
    drop = "" if first.drop is None else f", drop {figure(first.drop, first.unit)}"
    return f"{verdict}{first.name} {figure(first.quantized, first.unit)}{drop}"


def _counts(counts: BatchCounts) -> str:
    told = [f"{getattr(counts, state)} {state}" for state in _STATES if getattr(counts, state)]
    return f"{counts.total} ({', '.join(told)})"


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
