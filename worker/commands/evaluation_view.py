"""An evaluation on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.contracts.evaluation_report import EvaluatedMetric, EvaluationReport
from worker.commands.console import make_console
from worker.commands.figures import bytes_words, change, figure, labelled, number, size_words, span, speed_words
from worker.commands.verdict_view import print_verdict


def print_evaluation(result: dict[str, Any], console: Console | None = None) -> None:
    """The figures of one model, or of two side by side with the change, and the verdict; on standard error."""
    console = console or make_console(stderr=True)
    found = EvaluationReport.model_validate(result)
    console.print(_figures(found))
    if found.fidelity is not None:
        words = f"SQNR {number(found.fidelity.sqnr_db, 'dB')}, cosine {number(found.fidelity.cosine, digits=6)}"
        console.print(Text(f"fidelity  {words}"))
    print_verdict(found.verdict, found.gate, console)


def _figures(found: EvaluationReport) -> Table:
    title = f"{found.samples} samples"
    own, other = found.model, found.reference
    if other is None:
        table = Table("", "model", title=title, title_justify="left")
        for metric in found.metrics:
            table.add_row(Text(labelled(metric.name, metric.unit)), _value(metric))
        table.add_row("size", bytes_words(own.size_bytes))
        table.add_row("latency", number(own.latency_ms, "ms"))
        return table
    table = Table("", "reference", "model", "change", title=title, title_justify="left")
    for metric in found.metrics:
        before = f"{figure(metric.reference_value, metric.unit)}{span(metric.reference_interval, metric.unit)}"
        table.add_row(Text(labelled(metric.name, metric.unit)), before, _value(metric), _change(metric))
    sizes = (other.size_bytes, own.size_bytes)
    table.add_row("size", *map(bytes_words, sizes), size_words(*sizes))
    times = (other.latency_ms, own.latency_ms)
    table.add_row("latency", *(number(ms, "ms") for ms in times), speed_words(*times, found.latency))
    return table


def _value(metric: EvaluatedMetric) -> str:
    return f"{figure(metric.value, metric.unit)}{span(metric.interval, metric.unit)}"


def _change(metric: EvaluatedMetric) -> str:
    moved = change(
        metric.reference_value,
        metric.value,
        metric.unit,
        better=metric.better,
        drop_interval=metric.drop_interval,
    )
    return f"{moved}, p {metric.p_value:.2g}" if moved and metric.p_value is not None else moved
