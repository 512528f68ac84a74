"""Reports, evaluations and inspections on a terminal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.contracts.changes import (
    Change,
    change_of,
    difference_change,
    latency_change,
    latency_change_of,
    metric_change,
    p_words,
    pairs_note,
    size_change,
)
from service.contracts.evaluation_report import EvaluatedMetric, EvaluationReport
from service.contracts.graph_view import Inspection
from service.contracts.report import Advice, LatencyFigures, MetricFigures, Report, contributing_layers
from service.reports import algorithms, verdict
from service.reports.figures import milliseconds, percent, size
from worker.commands.console import make_console
from worker.commands.figures import figure, labelled, number, span
from worker.commands.summary import TONES, apply_words, change_text, print_findings, verdict_line

WORST_LAYERS = 5
MOST_NAMED = 3
_MOST_ADVICE = 3


def print_report(report: Report, console: Console | None = None, *, report_path: Path | None = None) -> None:
    """The report in short: findings, figures, gate, advice, layers."""
    console = console or make_console()
    print_findings(report.findings, console)
    console.print(_compared(report))
    fidelity = report.fidelity
    words = [f"SQNR {number(fidelity.sqnr_db, 'dB')}", f"cosine {number(fidelity.cosine, digits=6)}"]
    if fidelity.top1_agreement is not None:
        words.append(f"top-1 agreement {fidelity.top1_agreement:.2f}{span(fidelity.top1_agreement_interval)} %")
    console.print(Text(f"fidelity  {', '.join(words)} ({fidelity.samples} {fidelity.source} samples)"))
    print_choices(report, console)
    _print_trainings(report, console)
    _print_layers(report, console)
    for note in report.notes:
        console.print(Text(f"note: {note}"))
    console.print(verdict_line(verdict.headline(report), report.verdict), soft_wrap=True)
    _print_conditions(report, console)
    print_advice(report, console, report_path)


def size_ratio(report: Report) -> float:
    """How many times smaller the quantized file is."""
    return report.float_.size_bytes / report.quantized.size_bytes


def _compared(report: Report) -> Table:
    table = Table("", "float", "quantized", "change", title="Results", title_justify="left")
    for metric in report.metrics:
        _add_metric(table, metric)
    _add_sizes(table, report.float_.size_bytes, report.quantized.size_bytes)
    _add_latency(table, report.float_.latency_ms, report.quantized.latency_ms, report.latency)
    return table


def _add_metric(table: Table, metric: MetricFigures) -> None:
    spans = (span(metric.float_interval, metric.unit), span(metric.quantized_interval, metric.unit))
    values = (figure(metric.float_, metric.unit) + spans[0], figure(metric.quantized, metric.unit) + spans[1])
    table.add_row(Text(labelled(metric.name, metric.unit)), *values, _cell(change_of(metric)))


def _add_sizes(table: Table, before: int, after: int) -> None:
    table.add_row("size", size(before), size(after), _cell(size_change(before, after)))


def _add_latency(table: Table, before: float | None, after: float | None, figures: LatencyFigures | None) -> None:
    if figures is not None:
        change = latency_change_of(figures)
    else:
        change = latency_change(after / before if before and after else None)
    table.add_row(
        "latency",
        milliseconds(before, after),
        milliseconds(after, before),
        _cell(change, pairs_note(before, after, change)),
    )


def _cell(change: Change, more: str = "") -> Text:
    """A change with its interval."""
    interval = f" ({change.interval})" if change.interval else ""
    return Text.assemble(change_text(change), f"{interval}{more}")


def _print_trainings(report: Report, console: Console) -> None:
    """The network before each training, in its best epoch and in its last; the rest is told by a note."""
    for algorithm in report.algorithms:
        figures = algorithm.training
        if figures is None or not figures.epochs:
            continue
        told = {0: "before", figures.epochs[-1].epoch: "last", figures.best_epoch: "best"}
        # rich takes markup in the heads of columns; a metric's name cannot hold any
        columns = ("epoch", "", "train loss", "validation loss", figures.metric or "metric", "oscillating", "frozen")
        title = Text(f"Training by {algorithm.method}, learning rate {figures.learning_rate:g}")
        table = Table(*columns, title=title, title_justify="left")
        for epoch in figures.epochs:
            if epoch.epoch in told:
                measured = (epoch.train_loss, epoch.validation_loss, epoch.metric)
                shares = (f"{epoch.oscillating:.2%}", f"{epoch.frozen:.2%}")
                table.add_row(str(epoch.epoch), told[epoch.epoch], *(figure(value, "") for value in measured), *shares)
        console.print(table)


def _print_layers(report: Report, console: Console) -> None:
    quantized = [layer for layer in report.layers if layer.reason is None]
    blamed = contributing_layers(report.layers, WORST_LAYERS)
    if blamed:
        title = f"Layers by error contribution, the first {len(blamed)}" if len(blamed) > 1 else "Error contribution"
        table = Table("layer", "op", "of all error", "SQNR (dB)", title=title, title_justify="left")
        for layer in blamed:
            table.add_row(Text(layer.name), Text(layer.op), percent(layer.error_percent), number(layer.sqnr_db))
        console.print(table)
    reasons: dict[str, Counter[str]] = {}
    for layer in report.layers:
        if layer.reason is not None:
            reasons.setdefault(layer.reason, Counter())[layer.op] += len(layer.nodes) or 1
    if reasons:
        nodes = sum(len(layer.nodes) or 1 for layer in quantized)
        console.print(f"{nodes} nodes quantized; in float:")
        for reason, operators in sorted(reasons.items(), key=lambda item: -item[1].total()):
            listed = ", ".join(f"{count} {op}" for op, count in operators.most_common())
            console.print(Text(f"  {operators.total()}: {reason} ({listed})"))


def print_inspection(found: Inspection, console: Console | None = None) -> None:
    """What stays in float, worst first: what can be helped before what cannot; then what is replaced, and the sum."""
    console = console or make_console()
    left = sorted(
        (node for node in found.nodes if not node.quantized), key=lambda node: node.hint is None or node.by_design
    )
    groups: dict[tuple[str, str, str], list[str]] = {}
    for node in left:
        groups.setdefault((node.op, node.reason or "", node.hint or ""), []).append(node.name)
    if groups:
        table = Table("nodes", "op", "reason", "hint", title_justify="left")
        for (op, reason, hint), names in groups.items():
            more = f"\n... and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            named = "\n".join(names[:MOST_NAMED]) + more
            table.add_row(Text(named), Text(op), Text(reason), Text(hint))
        console.print(table)
    if any(len(names) > MOST_NAMED for names in groups.values()):
        console.print(Text("--json lists all nodes."))
    for node in found.nodes:
        if node.quantized and node.reason:
            console.print(Text(f"replaced: {node.name}: {node.reason}"))
    for note in found.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(found.summary, style="bold"))


def print_advice(report: Report, console: Console, path: Path | None = None) -> None:
    """The advice with its figures, and how to apply it.

    Args:
        report: whole.
        console: to print on.
        path: where the report was written; None: nowhere.
    """
    for place, advice in enumerate(report.advice[:_MOST_ADVICE], 1):
        helped = {True: "green", False: "dim", None: ""}[advice.helped]
        console.print(Text.assemble(f"advice {place}  ", (advice.code, helped or "bold"), f": {advice.message}"))
        console.print(Text(f"  because {advice.because}"))
        console.print(Text(f"  {figure_words(advice)}"))
    if len(report.advice) > _MOST_ADVICE:
        console.print(Text(f"... and {len(report.advice) - _MOST_ADVICE} more in the report"))
    words = apply_words(report, path)
    if words:
        console.print(Text(f"  apply it: {words}"))


def figure_words(advice: Advice) -> str:
    """The result of trying it."""
    found = advice.figure
    if found is None:
        return advice.why or "not tried"
    unit = f" {found.unit}" if found.unit else ""
    before, after = (figure(value, "") for value in (found.before, found.after))
    told = f"tried: {found.metric} {before} -> {after}{unit} on {found.samples} samples, {found.seconds:.1f} s"
    return told if advice.helped else f"{told}; {advice.why or 'no improvement'}"


def print_choices(report: Report, console: Console) -> None:
    """The models that might be returned, and both forms of products with weights in blocks."""
    if report.fallback is not None:
        for sentence in algorithms.sentences(report.fallback):
            console.print(Text(f"fallback  {sentence}"))
        for candidate in algorithms.candidates(report.fallback):
            mark = "->" if candidate.result else "  "
            told = f"{candidate.latency} of float, {candidate.size}, other conditions: {candidate.holds}"
            console.print(Text(f"  {mark} {candidate.words}: {told}"))
    if report.kernels is not None:
        console.print(Text(f"kernels   {algorithms.kernels_words(report.kernels)}"))
        for form in algorithms.forms(report.kernels):
            console.print(Text(f"  {form.form}: {form.latency}, {form.ratio} of float, SQNR {form.sqnr}"))


def _print_conditions(found: Report | EvaluationReport, console: Console) -> None:
    """Each condition of the gate: its result, what was required, what was measured."""
    for one in verdict.conditions(found):
        interval = f" ({one.interval})" if one.interval else ""
        why = f" {one.why}" if one.why else ""
        told = f": {one.words}; measured {one.got}{interval}.{why}"
        console.print(Text.assemble("  ", (one.result, TONES[one.tone]), told), soft_wrap=True)


def print_evaluation(result: dict[str, Any], console: Console | None = None) -> None:
    """The figures of one model, or of two side by side with the change, and the verdict; on standard error."""
    console = console or make_console(stderr=True)
    found = EvaluationReport.model_validate(result)
    console.print(_evaluated(found))
    if found.fidelity is not None:
        words = f"SQNR {number(found.fidelity.sqnr_db, 'dB')}, cosine {number(found.fidelity.cosine, digits=6)}"
        console.print(Text(f"fidelity  {words}"))
    came_to = verdict.outcome(found.verdict, collapsed=any(clause.is_collapse for clause in found.gate))
    console.print(Text.assemble("result    ", (came_to.word, TONES[came_to.tone] or "bold")))
    _print_conditions(found, console)


def _evaluated(found: EvaluationReport) -> Table:
    title = f"{found.samples} samples"
    own, other = found.model, found.reference
    if other is None:
        table = Table("", "model", title=title, title_justify="left")
        for metric in found.metrics:
            table.add_row(Text(labelled(metric.name, metric.unit)), _measured(metric))
        table.add_row("size", size(own.size_bytes))
        table.add_row("latency", number(own.latency_ms, "ms"))
        return table
    table = Table("", "baseline", "model", "change", title=title, title_justify="left")
    for metric in found.metrics:
        before = f"{figure(metric.reference_value, metric.unit)}{span(metric.reference_interval, metric.unit)}"
        table.add_row(Text(labelled(metric.name, metric.unit)), before, _measured(metric), _moved(metric))
    _add_sizes(table, other.size_bytes, own.size_bytes)
    _add_latency(table, other.latency_ms, own.latency_ms, found.latency)
    return table


def _measured(metric: EvaluatedMetric) -> str:
    return f"{figure(metric.value, metric.unit)}{span(metric.interval, metric.unit)}"


def _moved(metric: EvaluatedMetric) -> Text:
    if metric.drop is not None:
        change = metric_change(metric.drop, metric.unit, better=metric.better, drop_interval=metric.drop_interval)
    else:
        change = difference_change(metric.reference_value, metric.value, metric.unit, better=metric.better)
    return _cell(change, "" if metric.p_value is None else f", {p_words(metric.p_value)}")
