"""The end of a quantization in a few lines: what came of it, accuracy, size, latency, what to look at."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from service.contracts.changes import (
    Change,
    change_of,
    latency_change,
    latency_change_of,
    pairs_note,
    size_change,
)
from service.contracts.preprocessing import PLAIN_NAMES
from service.contracts.report import Finding, Report, Verdict
from service.contracts.report.figures import SANITY
from service.contracts.surfaces import for_command_line
from service.contracts.targets import SATURATING_CPU
from service.reports.figures import figure, metric_title, milliseconds, percent, size
from service.reports.verdict import Headline, blame, conditions, first_advice, headline, outcome
from worker.commands.console import make_console

TONES = {"good": "bold green", "bad": "bold red", "unsure": "yellow", "plain": ""}
# Metrics that are shares of right decisions, and the share below which the preprocessing is doubted.
_SHARES_RIGHT, _HALF_RIGHT = ("top1", "top5", "accuracy_at_k", "per_class_accuracy"), 50.0
# Findings that explain it begin so, but for those that say it in other words.
_LABELS, _INPUTS = ("labels-shifted", "labels-never-decided"), "input-"
_SYMPTOMS = ("float-metric-at-chance", "float-metric-without-skill")
# The finding that names another preprocessing.
_FITS_BETTER = "input-fits-better-otherwise"
_ON_CALIBRATION = " (on the calibration data; --evaluation measures on other data)"
_MOST_WARNINGS = 3
_SEVERITIES = {"critical": "bold red", "warning": "yellow"}


def print_summary(report: Report, console: Console | None = None, *, report_path: Path | None = None) -> None:
    """A few lines, after the findings without which none of them can be trusted, before the first warnings.

    Args:
        report: whole.
        console: to print on; default: standard output.
        report_path: where the report was written; None: nowhere.
    """
    console = console or make_console()
    print_findings([one for one in report.findings if one.severity == "critical"], console)
    found = headline(report)
    console.print(verdict_line(found, report.verdict, _not_passed(report)), soft_wrap=True)
    _print(console, "accuracy", _accuracy(report))
    sizes = (report.float_.size_bytes, report.quantized.size_bytes)
    _print(console, "size", _moved(size(sizes[0]), size(sizes[1]), size_change(*sizes)))
    _print(console, "latency", _latency(report))
    _print(console, "look at", Text(_look_at(report, report_path)))
    _print_warnings(report, console)


def _print_warnings(report: Report, console: Console) -> None:
    """The first warnings in a line each, and what this CPU may have done to accuracy where that has fallen."""
    if any(change_of(metric).tone == "bad" for metric in report.metrics):
        for note in (note for note in report.notes if note.startswith(SATURATING_CPU)):
            console.print(Text.assemble(("note", "yellow"), f": {note}"), soft_wrap=True)
    warnings = [one for one in report.findings if one.severity == "warning"]
    for finding in warnings[:_MOST_WARNINGS]:
        style = _SEVERITIES[finding.severity]
        console.print(Text.assemble((f"warning[{finding.code}]", style), f": {finding.message}"), soft_wrap=True)
    if len(warnings) > _MOST_WARNINGS:
        console.print(Text(f"{len(warnings) - _MOST_WARNINGS} more in the report (-v)"))


def verdict_line(found: Headline, verdict: Verdict, more: str = "") -> Text:
    """What came of it, its reason behind it; red where the model cannot be used as it is.

    A gate that failed is named first, whatever else there is: logs of CI are searched for it.
    """
    failed = outcome("fail").word
    word = f"{failed}: {found.word.lower()}" if verdict == "fail" and found.word != failed else found.word
    sentence = " ".join(word for word in (found.alarm, found.sentence, more) if word)
    tone = "bad" if found.alarm else found.tone
    return Text.assemble((f"{word}: ", TONES[tone] or "bold"), (sentence, "red" if tone == "bad" else ""))


def print_findings(findings: list[Finding] | tuple[Finding, ...], console: Console) -> None:
    """What has to be known before the figures."""
    for finding in findings:
        style = _SEVERITIES.get(finding.severity, "")
        console.print(
            Text.assemble((f"{finding.severity}[{finding.code}]", style), f": {finding.message}"), soft_wrap=True
        )
        if finding.hint:
            console.print(Text(f"  hint: {for_command_line(finding.hint)}"), soft_wrap=True)


def change_text(change: Change) -> Text:
    """A change with its arrow and colour, and whether it is significant."""
    told = f"{change.words} {change.arrow}".rstrip()
    note = change.told.removeprefix(change.words) or (f" ({change.judgement})" if change.needs_judgement else "")
    return Text(f"{told}{note}", style=TONES[change.tone].removeprefix("bold "))


def apply_words(report: Report, path: Path | None) -> str:
    """The command that applies the first advice which changes the config; "" where none does."""
    first = next((place for place, advice in enumerate(report.advice, 1) if advice.config), None)
    if first is None:
        return ""
    name = "REPORT.json" if path is None else shlex.quote(str(path))
    return f"quantmill apply-advice {name}{'' if first == 1 else f' --number {first}'} --output config.json"


def _not_passed(report: Report) -> str:
    """The conditions of the gate that did not pass, with what was measured."""
    found = [one for one in conditions(report) if one.clause.holds is not True and one.code != SANITY]
    return " ".join(f"{one.words}; measured {one.got}." for one in found)


def _print(console: Console, name: str, told: Text) -> None:
    console.print(Text.assemble(f"{name:<10}", told), soft_wrap=True)


def _moved(before: str, after: str, change: Change) -> Text:
    return Text.assemble(f"{before} -> {after}, ", change_text(change))


def _accuracy(report: Report) -> Text:
    fidelity = report.fidelity
    agreement = "" if fidelity.top1_agreement is None else f"top-1 agreement {percent(fidelity.top1_agreement, 2)}"
    if fidelity.source == "random":
        return Text("not measured: random data shows nothing about accuracy", style="bold yellow")
    if not report.metrics:
        measured = agreement or f"output SQNR {figure(fidelity.sqnr_db, 'dB')}"
        return Text(f"not measured (no labels); {measured} on {fidelity.source} data")
    metric = report.metrics[0]
    before, after = (figure(value, metric.unit) for value in (metric.float_, metric.quantized))
    where = _ON_CALIBRATION if fidelity.source == "calibration" else ""
    return Text.assemble(f"{metric_title(metric.name)} ", _moved(before, after, change_of(metric)), where)


def _latency(report: Report) -> Text:
    if report.latency is not None:
        times, change = (report.latency.float_ms, report.latency.quantized_ms), latency_change_of(report.latency)
    else:
        before, after = report.float_.latency_ms, report.quantized.latency_ms
        if not before or not after:
            return Text("not measured")
        times, change = (before, after), latency_change(after / before)
    told = _moved(milliseconds(*times), milliseconds(*reversed(times)), change)
    return told.append(pairs_note(*times, change))


def _doubts(report: Report) -> str:
    """What explains a float model that is right about fewer than half of the labels, and what to do about it; "" where
    nothing has to be explained. The preprocessing is doubted where no finding explains it.
    """
    low = next((one for one in report.metrics if one.kind in _SHARES_RIGHT and (one.float_ or 0.0) < _HALF_RIGHT), None)
    found = next((one for one in report.findings if _explains(one)), None)
    if low is None and (found is None or found.code != _FITS_BETTER):
        return ""
    told = "" if low is None else f"{metric_title(low.name)} of the float model is {figure(low.float_, low.unit)}"
    if found is not None and not found.code.startswith(_INPUTS):
        return f"{told} ({found.code}). {for_command_line(found.hint or '')}".rstrip()
    doubt = f"{told}, so the preprocessing" if told else "the preprocessing"
    hint = None if found is None else found.hint
    return f"{doubt} probably does not match. {for_command_line(hint or '') or _others(report)}"


def _explains(finding: Finding) -> bool:
    """True for a fault of labels, inputs or data that makes a good model wrong."""
    return finding.code.startswith(_LABELS) or (
        finding.severity == "critical"
        and (finding.code.startswith(_INPUTS) or (finding.undermines_verdict and finding.code not in _SYMPTOMS))
    )


def _others(report: Report) -> str:
    """The names of preprocessing that are not in use."""
    spec = report.manifest.evaluation_preprocessing or report.manifest.calibration_preprocessing
    used = set() if spec is None else {feed.name for feed in spec.inputs.values()}
    names = "|".join(name for name in PLAIN_NAMES if name not in used)
    return f"Try `--preprocessing {names}`, or set scale, mean and std; or check labels and order of the classes."


def _look_at(report: Report, path: Path | None) -> str:
    """Why the float model is wrong, if it is; else the layer with the largest error contribution, and what to try."""
    wrong = _doubts(report)
    if wrong:
        return wrong  # what follows from figures of a model that does not work helps nobody
    found, advice = blame(report), first_advice(report)
    told = []
    if found is not None and found.layer:
        told.append(f"{found.layer} ({found.op}): {percent(found.layer_percent, 0)} of all error, {found.cause}.")
    elif found is not None:
        told.append(f"{found.cause}: {percent(found.cause_percent, 0)} of all error.")
    if advice is not None:
        told.append(f"Try: {advice.message.rstrip('.')}.")
        told += [f"Apply it with `{words}`." for words in [apply_words(report, path)] if words and advice.config]
    return " ".join(told) or "no layer stands out"
