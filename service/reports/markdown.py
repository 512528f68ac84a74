"""The report as Markdown for a merge request: verdict, figures, what to blame and to try, findings, gate, layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from service.contracts.report import Advice, Cause, CausePlace, Finding, Report, contributing_layers
from service.reports import algorithms, gains, layers, verdict
from service.reports.environment import abridged_json
from service.reports.figures import count, figure, name, percent, prose
from service.reports.figures import size as bytes_words

_MARKS = {"good": "✅", "bad": "❌", "unsure": "❔", "plain": "➖"}
_SEVERITIES = {"critical": "🛑 Critical", "warning": "⚠️ Warning", "info": "ℹ️ Info"}
_MOST_LAYERS, _REASONS, _TEXTS = 10, 8, 20
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]|~$#])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# What a forge would take for a name, a number of an issue, a picture or an address; the space between has no width.
_REFERENCE = re.compile(r"(?<=[@#!&%$:])(?=\w)|(?<=:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE)
# What makes a list or a heading at the beginning of a line.
_LEADING = re.compile(r"^(\s*)([-+](?=\s|$)|=|\d+[.)](?=\s|$))")
_NO_WIDTH = "\u200b"


def markdown(report: Report) -> str:
    """The document; every text of a model or a message stands in it as it is, and is read as nothing else."""
    parts = [
        _head(report),
        _cards(report),
        _findings(report.findings),
        _gate(report),
        _fallback(report),
        _kernels(report),
        _metrics(report),
        _causes(report.causes),
        _advice(report.advice),
        _layers(report),
        _left(report),
        _notes(report.notes),
        _manifest(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """A sentence that Markdown reads as plain text, also within a table."""
    plain = _REFERENCE.sub(_NO_WIDTH, prose(text))
    for letter, entity in _ENTITIES.items():
        plain = plain.replace(letter, entity)
    plain = _PUNCTUATION.sub(r"\\\1", plain)
    return _LEADING.sub(lambda found: f"{found[1]}{found[2][:-1]}\\{found[2][-1]}", plain)


def code(text: str) -> str:
    """A name as code, also within a table: the fence is longer than any run of backticks in it."""
    inner = name(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall(r"`+", inner)), default=0) + 1)
    space = " " if inner.startswith("`") or inner.endswith("`") or not inner.strip() else ""
    return f"{fence}{space}{inner or ' '}{space}{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(report: Report) -> str:
    told = verdict.headline(report)
    lines = [f"# {_MARKS[told.tone]} Quantization: {told.word}", "", escaped(told.sentence)]
    if told.alarm:
        lines += ["", f"**🛑 {escaped(told.alarm)}**"]
    if told.accuracy:
        lines += ["", escaped(told.accuracy)]
    found, first = verdict.blame(report), verdict.first_advice(report)
    if found is not None:
        lines += ["", escaped(verdict.blame_words(found))]
    if first is not None:
        lines += ["", f"Try first: {escaped(first.message)}"]
    return "\n".join(lines)


def _findings(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings[:_TEXTS]:
        hint = f" {escaped(finding.hint)}" if finding.hint else ""
        cannot = (
            " **No statement about accuracy is possible until this is fixed.**" if finding.undermines_verdict else ""
        )
        where = ", ".join(f"{escaped(key)} {code(str(value))}" for key, value in finding.where.items())
        told = f"- **{_SEVERITIES[finding.severity]}**: {escaped(finding.message)}{cannot}{hint}"
        lines.append(f"{told} ({where}; {code(finding.code)})" if where else f"{told} ({code(finding.code)})")
    return "\n".join(["## Findings", "", *lines, *_more(findings, _TEXTS, "finding")]) if lines else ""


def _cards(report: Report) -> str:
    rows = [
        (escaped(card.title), f"**{escaped(_marked(card))}**", escaped(card.before), escaped(card.after),
         " ".join(escaped(sentence) for sentence in card.sentences))
        for card in gains.cards(report)
    ]  # fmt: skip
    return "## Results\n\n" + table(("", "change", "float", "quantized", ""), rows)


def _marked(card: gains.Card) -> str:
    return f"{card.change} {card.arrow}".rstrip()


def _gate(report: Report) -> str:
    rows = [
        (f"{_MARKS[told.tone]} {told.result}", f"{escaped(told.words)} ({code(told.code)})", escaped(told.got),
         escaped(told.interval), escaped(told.why))
        for told in verdict.conditions(report)
    ]  # fmt: skip
    return "## Gate\n\n" + table(("result", "condition", "measured", "interval", ""), rows) if rows else ""


def _fallback(report: Report) -> str:
    told = report.fallback
    if told is None:
        return ""
    rows = [
        (escaped(row.result), escaped(row.words), escaped(row.latency), escaped(row.size), escaped(row.holds))
        for row in algorithms.candidates(told)
    ]  # fmt: skip
    head = ("", "model", "latency ratio", "size", "other conditions")
    sentences = [escaped(sentence) for sentence in algorithms.sentences(told)]
    return "\n\n".join(["## Fallback", " ".join(sentences), table(head, rows)])


def _kernels(report: Report) -> str:
    told = report.kernels
    if told is None:
        return ""
    rows = [
        (escaped(row.form), escaped(row.latency), escaped(row.ratio), escaped(row.sqnr))
        for row in algorithms.forms(told)
    ]
    head = ("kernel", "latency", "latency ratio", "SQNR")
    listed = [table(head, rows)] if rows else []
    return "\n\n".join(["## Matrix product kernels", escaped(algorithms.kernels_words(told)), *listed])


def _metrics(report: Report) -> str:
    rows = []
    for metric in report.metrics[:_TEXTS]:
        card = gains.metric_card(metric, report.fidelity.samples)
        told = " ".join(escaped(sentence) for sentence in card.sentences)
        rows.append((code(metric.name), escaped(card.before), escaped(card.after), escaped(_marked(card)), told))
    if not rows:
        return ""
    source = escaped(f"Measured on {gains.source_words(report)}.")
    return f"## Accuracy\n\n{source}\n\n" + table(("metric", "float", "quantized", "change", ""), rows)


def _causes(causes: Sequence[Cause]) -> str:
    rows = [
        (escaped(cause.message), escaped(percent(cause.error_percent)), _worst_place(cause.places)) for cause in causes
    ][:_TEXTS]
    head = ("cause", "share of error", "largest contribution")
    return f"## Causes of error\n\n{table(head, rows)}" if rows else ""


def _worst_place(places: Sequence[CausePlace]) -> str:
    if not places:
        return ""
    worst = places[0]
    where = f"{code(worst.node)} " if worst.node else ""
    return f"{where}{escaped(percent(worst.error_percent))}: {escaped(worst.fact)}"


def _advice(advice: Sequence[Advice]) -> str:
    parts = []
    for entry in advice[:_TEXTS]:
        lines = [
            f"- **{escaped(entry.message)}** Because: {escaped(entry.because)} ({escaped(entry.why or entry.status)})"
        ]
        if entry.figure is not None:
            told = entry.figure
            lines.append(
                f"  {code(told.metric)} {escaped(figure(told.before, told.unit))} → "
                f"{escaped(figure(told.after, told.unit))} on {count(told.samples, 'sample')}"
            )
        if entry.config:
            text, _ = abridged_json(entry.config)
            fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=2) + 1)
            lines += ["", *(f"  {line}" for line in (f"{fence}json", *text.splitlines(), fence))]
        parts.append("\n".join(lines))
    return "\n\n".join(["## Advice", *parts]) if parts else ""


def _layers(report: Report) -> str:
    measured = contributing_layers(report.layers, _MOST_LAYERS)
    told = escaped(layers.coverage(report))
    if not measured:
        return f"## Layers\n\n{told}"
    rows = [
        (code(layer.name), code(layer.op), escaped(percent(layer.error_percent)), escaped(figure(layer.sqnr_db, "dB")),
         escaped(layers.storage_words(layer)), escaped(percent(layer.latency_percent)))
        for layer in measured
    ]  # fmt: skip
    head = ("layer", "operator", "error contribution", "SQNR", "stored as", "share of latency")
    return (
        f"## Layers\n\n{told}\n\n"
        f"<details><summary>Top {len(measured)} by error contribution</summary>\n\n{table(head, rows)}\n\n</details>"
    )


def _left(report: Report) -> str:
    groups = layers.left_in_float(report)
    rows = [(str(group.count), escaped(group.reason), escaped(group.operators)) for group in groups[:_REASONS]]
    if not rows:
        return ""
    listed = "\n".join([table(("nodes", "reason", "operators"), rows), *_more(groups, _REASONS, "reason")])
    number = sum(group.count for group in groups)
    return f"<details><summary>{count(number, 'node')} left in float</summary>\n\n{listed}\n\n</details>"


def _notes(notes: Sequence[str]) -> str:
    lines = [f"- {escaped(note)}" for note in notes[:_TEXTS]]
    return "\n".join(["## Notes", "", *lines, *_more(notes, _TEXTS, "note")]) if lines else ""


def _manifest(report: Report) -> str:
    made = report.manifest
    files = f"model {code(made.model_sha256[:12])} → {code(made.output_sha256[:12])}"
    size = f"{escaped(bytes_words(report.float_.size_bytes))} → {escaped(bytes_words(report.quantized.size_bytes))}"
    words = f"Quantmill {escaped(made.engine_version)}, preset {code(str(made.config.preset))}, {files}, {size}."
    return f"<sub>{words}</sub>"


def _more(items: Sequence[object], most: int, noun: str) -> list[str]:
    return ["", f"{count(len(items) - most, f'more {noun}')} in the JSON report."] if len(items) > most else []
