"""Reports, evaluations and inspections on a terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.contracts.evaluation_report import EvaluatedMetric, EvaluationReport
from service.contracts.graph_view import Inspection
from service.contracts.report import Advice, GateClause, Report, Verdict
from service.reports import algorithms
from worker.commands.console import make_console
from worker.commands.figures import bytes_words, change, figure, labelled, number, size_words, span, speed_words

WORST_LAYERS = 5
MOST_INSPECTED = 50
_MOST_ADVICE = 3
_HOLDS = {True: "holds", False: "BROKEN", None: "UNDECIDED"}
_VERDICT_STYLES = {"pass": "bold green", "fail": "bold red", "undecided": "bold yellow"}


def print_report(report: Report, console: Console | None = None, *, report_path: Path | None = None) -> None:
    """The report in short: what to know first, what it cost and gained, what was decided, what helps, where to look."""
    console = console or make_console()
    _print_findings(report, console)
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
    print_verdict(report.verdict, report.gate, console, summary=report.summary)
    print_advice(report, console, report_path)


def _print_findings(report: Report, console: Console) -> None:
    """What has to be known before the figures."""
    for finding in report.findings:
        style = {"critical": "bold red", "warning": "yellow"}.get(finding.severity, "")
        console.print(Text.assemble((f"{finding.severity}[{finding.code}]", style), f": {finding.message}"))
        if finding.hint:
            console.print(Text(f"  hint: {finding.hint}"))


def size_ratio(report: Report) -> float:
    """How many times smaller the quantized file is."""
    return report.float_.size_bytes / report.quantized.size_bytes


def _compared(report: Report) -> Table:
    table = Table("", "float", "quantized", "change", title="Quantization report", title_justify="left")
    for metric in report.metrics:
        before, after, unit = metric.float_, metric.quantized, metric.unit
        moved = change(before, after, unit, better=metric.better, drop_interval=metric.drop_interval)
        spans = (span(metric.float_interval, unit), span(metric.quantized_interval, unit))
        told = (figure(before, unit) + spans[0], figure(after, unit) + spans[1], moved)
        table.add_row(Text(labelled(metric.name, unit)), *told)
    sizes = (report.float_.size_bytes, report.quantized.size_bytes)
    table.add_row("size", *map(bytes_words, sizes), size_words(*sizes))
    times = (report.float_.latency_ms, report.quantized.latency_ms)
    table.add_row("latency", *(number(ms, "ms") for ms in times), speed_words(*times, report.latency))
    return table


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
    measured = [layer for layer in quantized if layer.sqnr_db is not None]
    if measured:
        table = Table(
            "layer", "op", "SQNR (dB)", title=f"Worst {min(WORST_LAYERS, len(measured))} layers", title_justify="left"
        )
        for layer in sorted(measured, key=lambda layer: layer.sqnr_db or 0.0)[:WORST_LAYERS]:
            table.add_row(Text(layer.name), Text(layer.op), number(layer.sqnr_db))
        console.print(table)
    reasons: dict[str, Counter[str]] = {}
    for layer in report.layers:
        if layer.reason is not None:
            reasons.setdefault(layer.reason, Counter())[layer.op] += len(layer.nodes) or 1
    if reasons:
        nodes = sum(len(layer.nodes) or 1 for layer in quantized)
        console.print(f"{nodes} nodes quantized; left in float:")
        for reason, operators in sorted(reasons.items(), key=lambda item: -item[1].total()):
            listed = ", ".join(f"{count} {op}" for op, count in operators.most_common())
            console.print(Text(f"  {operators.total()}: {reason} ({listed})"))


def print_inspection(found: Inspection, console: Console | None = None) -> None:
    """What stays in float, worst first: what can be helped before what cannot; then what is replaced, and the sum."""
    console = console or make_console()
    left = sorted(
        (node for node in found.nodes if not node.quantized), key=lambda node: node.hint is None or node.by_design
    )
    if left:
        table = Table("node", "op", "stays in float because", "what helps", title_justify="left")
        for node in left[:MOST_INSPECTED]:
            table.add_row(Text(node.name), Text(node.op), Text(node.reason or ""), Text(node.hint or ""))
        console.print(table)
    if len(left) > MOST_INSPECTED:
        console.print(Text(f"... and {len(left) - MOST_INSPECTED} more; --json lists all."))
    for node in found.nodes:
        if node.quantized and node.reason:
            console.print(Text(f"replaced: {node.name}: {node.reason}"))
    for note in found.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(found.summary, style="bold"))


def print_advice(report: Report, console: Console, path: Path | None = None) -> None:
    """What would help, with its figures, and how to apply it.

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
    if any(advice.config for advice in report.advice):
        name = "REPORT.json" if path is None else shlex.quote(str(path))
        first = next(place for place, advice in enumerate(report.advice, 1) if advice.config)
        chosen = "" if first == 1 else f" --number {first}"
        console.print(Text(f"  apply it: quantmill apply-advice {name}{chosen} --output config.json"))


def figure_words(advice: Advice) -> str:
    """What trying it gave, or that nobody tried."""
    found = advice.figure
    if found is None:
        return "untried"
    unit = f" {found.unit}" if found.unit else ""
    before, after = (figure(value, "") for value in (found.before, found.after))
    told = f"tried: {found.metric} {before} -> {after}{unit} on {found.samples} samples, {found.seconds:.1f} s"
    return told if advice.helped else f"{told}; it did not help"


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


def print_verdict(verdict: Verdict, gate: Iterable[GateClause], console: Console, *, summary: str = "") -> None:
    """The verdict, and each condition of the gate: whether it holds, what was wanted, what was got."""
    told = f"  {summary}" if summary else ""
    console.print(Text.assemble("verdict   ", (verdict, _VERDICT_STYLES.get(verdict, "bold")), told))
    for clause in gate:
        got = "not measured" if clause.got is None else f"{clause.got:g}"
        of = f" of {clause.metric}" if clause.metric else ""
        got += span(clause.interval)
        console.print(Text(f"  {_HOLDS[clause.holds]}: {clause.clause}{of} {clause.wanted:g}, got {got}"))
        if clause.why is not None:
            needed = "" if clause.samples_needed is None else f"; about {clause.samples_needed} samples would decide it"
            console.print(Text(f"    {clause.why}{needed}"))


def print_evaluation(result: dict[str, Any], console: Console | None = None) -> None:
    """The figures of one model, or of two side by side with the change, and the verdict; on standard error."""
    console = console or make_console(stderr=True)
    found = EvaluationReport.model_validate(result)
    console.print(_evaluated(found))
    if found.fidelity is not None:
        words = f"SQNR {number(found.fidelity.sqnr_db, 'dB')}, cosine {number(found.fidelity.cosine, digits=6)}"
        console.print(Text(f"fidelity  {words}"))
    print_verdict(found.verdict, found.gate, console)


def _evaluated(found: EvaluationReport) -> Table:
    title = f"{found.samples} samples"
    own, other = found.model, found.reference
    if other is None:
        table = Table("", "model", title=title, title_justify="left")
        for metric in found.metrics:
            table.add_row(Text(labelled(metric.name, metric.unit)), _measured(metric))
        table.add_row("size", bytes_words(own.size_bytes))
        table.add_row("latency", number(own.latency_ms, "ms"))
        return table
    table = Table("", "reference", "model", "change", title=title, title_justify="left")
    for metric in found.metrics:
        before = f"{figure(metric.reference_value, metric.unit)}{span(metric.reference_interval, metric.unit)}"
        table.add_row(Text(labelled(metric.name, metric.unit)), before, _measured(metric), _moved(metric))
    sizes = (other.size_bytes, own.size_bytes)
    table.add_row("size", *map(bytes_words, sizes), size_words(*sizes))
    times = (other.latency_ms, own.latency_ms)
    table.add_row("latency", *(number(ms, "ms") for ms in times), speed_words(*times, found.latency))
    return table


def _measured(metric: EvaluatedMetric) -> str:
    return f"{figure(metric.value, metric.unit)}{span(metric.interval, metric.unit)}"


def _moved(metric: EvaluatedMetric) -> str:
    moved = change(
        metric.reference_value,
        metric.value,
        metric.unit,
        better=metric.better,
        drop_interval=metric.drop_interval,
    )
    return f"{moved}, p {metric.p_value:.2g}" if moved and metric.p_value is not None else moved
