"""The verdict and the clauses of the gate in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.contracts.evaluation import AGREEMENT
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import GateClause, Interval, Report
from service.reports.figures import NOTHING, count, difference, figure, name, percent, size, times

Tone = Literal["good", "bad", "unsure", "plain"]
_WORDS: dict[str, tuple[str, str, Tone]] = {
    "pass": ("PASS", "✔", "good"),
    "fail": ("FAIL", "✖", "bad"),
    "undecided": ("UNDECIDED", "?", "unsure"),
    "none": ("NO VERDICT", "–", "plain"),
}
_RESULTS: dict[bool | None, tuple[str, str, Tone]] = {
    True: ("holds", "✔", "good"),
    False: ("broken", "✖", "bad"),
    None: ("undecided", "?", "unsure"),
}
_BUDGET = "budget."
_NO_GATE = "No gate was given, so nothing was judged: the figures below have to speak for themselves."


_HALF_PERCENT = 50.0


@dataclass(frozen=True)
class Headline:
    """The verdict in a word, a mark and a sentence."""

    word: str
    mark: str
    tone: Tone
    sentence: str
    alarm: str | None


@dataclass(frozen=True)
class Condition:
    """One clause of the gate, for people.

    Attributes:
        words: what had to hold.
        code: the key of the config.
        limit, got: with their units.
        interval: where ``got`` lies, in words; empty where nobody knows.
        result, mark, tone: whether it held.
        why: what a reader has to know of the result; empty for nothing.
    """

    words: str
    code: str
    limit: str
    got: str
    interval: str
    result: str
    mark: str
    tone: Tone
    why: str
    clause: GateClause


def headline(report: Report) -> Headline:
    """What was decided, and why, in one sentence; ``alarm`` tells of critical findings."""
    word, mark, tone = _WORDS[report.verdict]
    critical = sum(1 for finding in report.findings if finding.severity == "critical")
    alarms = []
    if critical:
        alarms.append(
            f"{count(critical, 'critical finding')}: figures or model are not to be used before "
            f"{'it is' if critical == 1 else 'they are'} mended."
        )
    alarms += filter(None, [_lost(report)])
    return Headline(word, mark, tone, _decided(report), " ".join(alarms) or None)


def _lost(report: Report) -> str | None:
    """What was lost beyond chance, and where most of the error comes from; None: nothing, or nobody knows where."""
    metric = next((one for one in report.metrics if one.drop_interval is not None and one.drop_interval.low > 0), None)
    if metric is None or metric.drop is None or not report.causes:
        return None
    cause = report.causes[0]
    where = f", worst in {name(cause.places[0].node)}" if cause.places and cause.places[0].node else ""
    part = "Most" if cause.error_percent > _HALF_PERCENT else "The largest part"
    return (
        f"{name(metric.name)} got worse by {difference(metric.drop, metric.unit)}. {part} of the error, about "
        f"{percent(cause.error_percent, 0)}, comes from this: {cause.message}{where}."
    )


def conditions(report: Report | EvaluationReport) -> list[Condition]:
    """Every clause of the gate, in order."""
    units = {metric.name: metric.unit for metric in report.metrics} | {AGREEMENT: "%"}
    return [_condition(clause, units) for clause in report.gate]


def is_lower_limit(clause: GateClause) -> bool:
    """True if ``got`` has to be at least what is wanted."""
    return clause.clause.removeprefix(_BUDGET).startswith("min_")


def interval_words(interval: Interval | None, unit: str) -> str:
    """Such as "95 %: 84.10 to 88.00 %"; empty where there is none."""
    if interval is None:
        return ""
    low, high = _plain(interval.low, unit), figure(interval.high, unit)
    return f"{interval.confidence * 100:g} %: {low} to {high}"


def _decided(report: Report) -> str:
    if not report.gate:
        return _NO_GATE
    broken = sum(1 for clause in report.gate if clause.holds is False)
    open_ones = sum(1 for clause in report.gate if clause.holds is None)
    total = count(len(report.gate), "condition")
    if not broken and not open_ones:
        return f"All {total} of the gate hold." if len(report.gate) > 1 else "The one condition of the gate holds."
    told = []
    if broken:
        told.append(f"{broken} of {total} of the gate {'is' if broken == 1 else 'are'} broken")
    if open_ones:
        of = "" if broken else f" of {total} of the gate"
        told.append(f"{open_ones}{of} cannot be decided by this data")
    counted = report.verdict == "fail" and not broken
    return ", ".join(told) + (": the gate counts that as failed." if counted else ".")


def _condition(clause: GateClause, units: dict[str, str]) -> Condition:
    words, limit, got, unit = _told(clause, units)
    result, mark, tone = _RESULTS[clause.holds]
    told = _drop_words if clause.clause == "max_drop" else interval_words
    return Condition(
        words=words,
        code=clause.clause,
        limit=limit,
        got=NOTHING if clause.got is None else got,
        interval=told(clause.interval, unit),
        result=result,
        mark=mark,
        tone=tone,
        why=_why(clause),
        clause=clause,
    )


def _told(clause: GateClause, units: dict[str, str]) -> tuple[str, str, str, str]:
    """What had to hold, the limit, what was got, and the unit of an interval."""
    kind = clause.clause.removeprefix(_BUDGET)
    who = "The search's budget: the" if clause.clause != kind else "The"
    metric = name(clause.metric or "the metric")
    unit = units.get(clause.metric or "", "")
    wanted, got = clause.wanted, clause.got or 0.0
    if kind == "max_drop":
        limit = difference(wanted, unit)
        return f"{metric} gets worse by at most {limit}", limit, _change(got, unit), unit
    if kind == "min_value":
        return f"{metric} is at least {figure(wanted, unit)}", figure(wanted, unit), figure(got, unit), unit
    if kind == "max_value":
        return f"{metric} is at most {figure(wanted, unit)}", figure(wanted, unit), figure(got, unit), unit
    if kind == "min_sqnr_db":
        return f"The output SQNR is at least {figure(wanted, 'dB')}", figure(wanted, "dB"), figure(got, "dB"), "dB"
    if kind == "max_size_bytes":
        limit = f"{size(wanted)} ({wanted:,.0f} bytes)"
        return f"{who} quantized file takes at most {limit}", limit, size(got), "B"
    if kind == "max_latency_ratio":
        words = f"{who} quantized model takes at most {times(wanted)} the float model's time"
        return words, times(wanted), times(got), "×"
    if kind == "goal":
        return f"The search's goal: {metric} within {wanted:g}", f"{wanted:g}", f"{got:.5g}", ""
    return f"{name(clause.clause)} {wanted:g}", f"{wanted:g}", f"{got:.5g}", ""


def _why(clause: GateClause) -> str:
    told = []
    if clause.holds is None:
        told.append(clause.why or "The data cannot tell.")
    elif clause.got is None:
        told.append("It was not measured.")
    if clause.samples_needed is not None:
        told.append(f"About {clause.samples_needed:,} samples would decide it.")
    if clause.confidence is not None:
        told.append(f"It had to be sure with {clause.confidence * 100:g} %.")
    return " ".join(told)


def _change(drop: float, unit: str) -> str:
    if round(drop, 4) == 0:
        return "no change"
    return f"{difference(drop, unit)} {'better' if drop < 0 else 'worse'}"


def _drop_words(interval: Interval | None, unit: str) -> str:
    """An interval of a drop, such as "95 %: 1.10 points better to 2.00 points worse"."""
    if interval is None:
        return ""
    return f"{interval.confidence * 100:g} %: {_change(interval.low, unit)} to {_change(interval.high, unit)}"


def _plain(value: float, unit: str) -> str:
    return figure(value, unit).removesuffix(unit).rstrip() if unit else figure(value)
