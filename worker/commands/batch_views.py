"""Batches on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.batches.schemas import BatchCounts, BatchListed, BatchMemberOut, BatchOut
from worker.commands.console import make_console

_STYLES = {"succeeded": "green", "failed": "red", "canceled": "yellow", "canceling": "yellow", "running": "bold"}
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
    table = Table("", "model", "preset", "config", "state", "verdict", "quantized", "drop", "bytes", "seconds", "job")
    table.columns[-1].no_wrap = True
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
    first = None if member.figures is None or not member.figures.metrics else member.figures.metrics[0]
    model = member.model if member.model_name is None else f"{member.model_name}@{member.model_version}"
    return [
        str(member.member),
        Text(model),
        Text(member.preset or ""),
        "" if member.config is None else str(member.config),
        _state(member.state),
        member.verdict or "",
        "" if first is None else f"{first.name} {_number(first.quantized)}",
        "" if first is None else _number(first.drop),
        "" if member.size_bytes is None else str(member.size_bytes),
        "" if member.seconds is None else f"{member.seconds:.1f}",
        member.job_id,
    ]


def _counts(counts: BatchCounts) -> str:
    told = [f"{getattr(counts, state)} {state}" for state in _STATES if getattr(counts, state)]
    return f"{counts.total} ({', '.join(told)})"


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
