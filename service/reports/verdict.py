"""What a job has come to and the conditions of its gate in words; which layer and cause to blame, what to try first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from service.contracts import changes
from service.contracts.changes import Better
from service.contracts.evaluation import AGREEMENT
from service.contracts.evaluation_report import EvaluationReport, OutlinedMetric, ReportOutline
from service.contracts.report import Advice, Cause, CausePlace, GateClause, Interval, Report, contributing_layers
from service.contracts.report.figures import SANITY
from service.reports.figures import NOTHING, count, figure, metric_title, name, percent, size, times

Tone = Literal["good", "bad", "unsure", "plain"]


class Told(NamedTuple):
    """How a state is shown: never by its color alone."""

    mark: str
    word: str
    tone: Tone


# The one table of what a job that has succeeded has come to, for reports, pages and the command line.
_OUTCOMES: dict[str, Told] = {
    "pass": Told("✔", "Gate passed", "good"),
    "fail": Told("✖", "Gate failed", "bad"),
    "undecided": Told("?", "Gate undecided", "unsure"),
    "none": Told("✔", "Succeeded, no gate", "plain"),
}
_COLLAPSED = Told("✖", "Collapsed", "bad")
_CRITICAL = Told("✖", "Critical finding", "bad")
_RESULTS: dict[bool | None, tuple[str, str, Tone]] = {
    True: ("passed", "✔", "good"),
    False: ("failed", "✖", "bad"),
    None: ("undecided", "?", "unsure"),
}
_BUDGET = "budget."
_RUNTIME = "runtime_agreement"
_LOWER_LIMITS = (SANITY, _RUNTIME)
# Points: where the interval allows a larger drop, a change that is not significant does not tell that none is there.
_WIDE = 5.0
_SOURCES = {
    "evaluation": "",
    "calibration": " of the calibration data",
    "random": " of random data, which shows nothing about accuracy",
}


def outcome(verdict: str, *, collapsed: bool = False, critical: bool = False) -> Told:
    """What a job that has succeeded has come to.

    Args:
        verdict: of its report.
        collapsed: the sanity check has failed.
        critical: there is a finding for which its figures cannot be trusted.
    """
    if collapsed:
        return _COLLAPSED
    return _CRITICAL if critical and verdict != "fail" else _OUTCOMES[verdict]


def accuracy_line(figures: ReportOutline) -> str:
    """Whether accuracy was kept, by how much the first metric has changed, and the samples that it rests on."""
    if figures.source == "random":
        return "Accuracy not measured: random data shows nothing about accuracy."
    if not figures.metrics:
        fact = f"top-1 agreement {percent(figures.top1_agreement, 2)}"
        if figures.top1_agreement is None:
            fact = f"output SQNR {figure(figures.sqnr_db, 'dB')}"
        return f"Accuracy not measured: no labels; {fact}{_on_samples(figures.samples, figures.source)}."
    first = figures.metrics[0]
    if first.drop is None:
        told = f"{metric_title(first.name)} {figure(first.quantized, first.unit)}"
    else:
        told = _accuracy_change(first)
    return f"{told}{_on_samples(first.samples or figures.samples, figures.source)}"


def _accuracy_change(metric: OutlinedMetric) -> str:
    change = metric.change
    words = change.words if metric.name == "top1" else f"{metric_title(metric.name)} {change.words}"
    if change.is_untested and change.direction != "same":
        return f"Accuracy changed: {words} (significance not tested)"
    if change.significant and change.direction != "same":
        lead = "lost" if change.direction == "worse" else "gained"
        return f"Accuracy {lead}: {_in_brackets(words, 'significant', change.interval)}"
    interval = metric.drop_interval
    if interval is not None and metric.unit == "%" and interval.high > _WIDE:
        return f"Accuracy undecided: {_in_brackets(words, 'not significant', change.interval)}"
    if change.direction == "same":
        return f"Accuracy kept: {_in_brackets(words, change.interval)}"
    return f"Accuracy kept: {_in_brackets('no significant change', words, change.interval)}"


def _in_brackets(words: str, *more: str) -> str:
    told = ", ".join(one for one in more if one)
    return f"{words} ({told})" if told else words


def _on_samples(samples: int | None, source: str | None) -> str:
    return "" if samples is None else f", {count(samples, 'sample')}{_SOURCES[source or 'evaluation']}"


@dataclass(frozen=True)
class Headline:
    """The verdict in a word, a mark and a sentence.

    Attributes:
        word, mark, tone: the outcome.
        sentence: its reason; without a gate what became of accuracy.
        alarm: what has to be read before any figure; None for nothing.
        accuracy: what became of accuracy; "" where the sentence tells it.
    """

    word: str
    mark: str
    tone: Tone
    sentence: str
    alarm: str | None
    accuracy: str


@dataclass(frozen=True)
class Condition:
    """One clause of the gate, for people.

    Attributes:
        words: the condition.
        code: the key of the config.
        limit, got: with their units.
        interval: where ``got`` is, in words; empty where it is not known.
        result, mark, tone: whether it passed.
        why: what the reader has to know about the result; empty for nothing.
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


@dataclass(frozen=True)
class Blame:
    """The layer and the cause that most of the error comes from.

    Attributes:
        layer: its name; empty: the whole network.
        op: its operator; empty where no layer is named.
        layer_percent: its part of all error.
        cause: in words.
        reach: where this cause is found, such as "This cause, in 28 layers".
        cause_percent: part of all error of this cause, in all of them.
        fact: what was found at the layer, with its figures.
    """

    layer: str
    op: str
    layer_percent: float | None
    cause: str
    reach: str
    cause_percent: float
    fact: str


def headline(report: Report) -> Headline:
    """The verdict with its reason in one sentence."""
    outline = ReportOutline.of(report)
    mark, word, tone = outcome(report.verdict, collapsed=outline.collapsed, critical=outline.critical_findings > 0)
    critical = outline.critical_findings
    alarms, told = [], _decided(report, outline)
    collapsed = next((one.why for one in report.gate if one.clause == SANITY and one.holds is not True), None)
    if collapsed and all(clause.is_collapse for clause in report.gate):
        # nobody has set a condition that could have failed
        told = sentence(collapsed.removeprefix("collapsed: "))
    elif collapsed:
        alarms.append(f"{collapsed[:1].upper()}{collapsed[1:]}.")
    if critical:
        them = "the critical finding" if critical == 1 else f"the {critical} critical findings"
        alarms.append(f"Fix {them} before you use the model or its figures.")
    accuracy = accuracy_line(outline)
    if told == accuracy or any(finding.undermines_verdict for finding in report.findings):
        accuracy = ""
    return Headline(word, mark, tone, told, " ".join(alarms) or None, accuracy)


def blame(report: Report) -> Blame | None:
    """The layer with the largest error contribution and its main cause; None where nothing was lost."""
    if not report.causes:
        return None
    layer = next(iter(contributing_layers(report.layers, 1)), None)
    if layer is None:
        cause = report.causes[0]
        return Blame(
            "",
            "",
            None,
            cause.message,
            _reach(cause),
            cause.error_percent,
            cause.places[0].fact if cause.places else "",
        )
    nodes = set(layer.nodes or (layer.name,))
    there: list[tuple[Cause, CausePlace]] = [
        (cause, place) for cause in report.causes for place in cause.places if place.node in nodes
    ]
    cause, place = max(there, key=lambda pair: pair[1].error_percent, default=(report.causes[0], None))
    fact = "" if place is None else place.fact
    return Blame(layer.name, layer.op, layer.error_percent, cause.message, _reach(cause), cause.error_percent, fact)


def _reach(cause: Cause) -> str:
    layers = len({place.node for place in cause.places if place.node}) + cause.places_left_out
    return f"This cause, in {count(layers, 'layer')}" if layers else "This cause"


def first_advice(report: Report) -> Advice | None:
    """The one thing to try: the first advice that helped, or else the first that was not tried."""
    helped = (advice for advice in report.advice if advice.helped)
    untried = (advice for advice in report.advice if advice.status == "untried")
    return next(helped, None) or next(untried, None)


def blame_words(found: Blame) -> str:
    """The blame in a sentence."""
    where = f": {found.fact}" if found.fact else ""
    reach = found.reach[:1].lower() + found.reach[1:]
    cause = f"{found.cause} ({reach}: {percent(found.cause_percent, 0)} of all error){where}."
    if not found.layer:
        return f"Main cause: {cause}"
    return (
        f"Largest error contribution: {name(found.layer)} ({found.op}), {percent(found.layer_percent, 0)} of all "
        f"error. Cause: {cause}"
    )


def conditions(report: Report | EvaluationReport) -> list[Condition]:
    """Every clause of the gate, in order."""
    known: dict[str, tuple[str, Better]] = {metric.name: (metric.unit, metric.better) for metric in report.metrics}
    known[AGREEMENT] = ("%", "higher")
    return [_condition(clause, *known.get(clause.metric or "", ("", "higher"))) for clause in report.gate]


def is_lower_limit(clause: GateClause) -> bool:
    """True if ``got`` has to be at least what is wanted."""
    if clause.clause == "goal":
        # a clause does not tell the kind of goal, whose limits lie on either side; its result does
        return clause.got is not None and clause.holds is (clause.got > clause.wanted)
    return clause.clause in _LOWER_LIMITS or clause.clause.removeprefix(_BUDGET).startswith("min_")


def interval_words(interval: Interval | None, unit: str) -> str:
    """Such as "95 % CI: 84.10 to 88.00 %"; empty where there is none."""
    if interval is None:
        return ""
    low, high = _plain(interval.low, unit), figure(interval.high, unit)
    return f"{changes.confidence_words(interval)}: {low} to {high}"


def _decided(report: Report, outline: ReportOutline) -> str:
    if report.critical_findings and report.verdict != "fail":
        return sentence(report.critical_findings[0].message)
    if report.verdict == "none":
        return accuracy_line(outline)
    broken = sum(1 for clause in report.gate if clause.holds is False)
    open_ones = sum(1 for clause in report.gate if clause.holds is None)
    total = count(len(report.gate), "condition")
    if not broken and not open_ones:
        return f"All {total} of the gate passed." if len(report.gate) > 1 else "The condition of the gate passed."
    told = []
    if broken:
        told.append(f"{broken} of {total} of the gate failed")
    if open_ones:
        of = "" if broken else f" of {total} of the gate"
        told.append(f"{open_ones}{of} {'is' if open_ones == 1 else 'are'} undecided on this data")
    counted = report.verdict == "fail" and not broken
    return ", ".join(told) + ("; the gate counts undecided as failed." if counted else ".")


def _condition(clause: GateClause, unit: str, better: Better) -> Condition:
    words, limit, got, interval = _told(clause, unit, better)
    result, mark, tone = _RESULTS[clause.holds]
    return Condition(
        words=words,
        code=clause.clause,
        limit=limit,
        got=NOTHING if clause.got is None else got,
        interval=interval,
        result=result,
        mark=mark,
        tone=tone,
        why=_why(clause, unit),
        clause=clause,
    )


def _told(clause: GateClause, unit: str, better: Better) -> tuple[str, str, str, str]:
    """The condition, the limit, what was measured, and its interval."""
    kind = clause.clause.removeprefix(_BUDGET)
    who = "Budget of the search: the" if clause.clause != kind else "The"
    metric = metric_title(clause.metric or "the metric")
    wanted, got = clause.wanted, clause.got or 0.0
    around = interval_words(clause.interval, unit)
    if kind == "max_drop":
        change = changes.metric_change(clause.got, unit, better=better, drop_interval=clause.interval)
        limit = changes.signed(-wanted if better == "higher" else wanted, unit)
        return f"Largest accuracy drop: {metric}, {limit}", limit, change.words, change.interval
    if kind == "min_value":
        return f"{metric} is at least {figure(wanted, unit)}", figure(wanted, unit), figure(got, unit), around
    if kind == "max_value":
        return f"{metric} is at most {figure(wanted, unit)}", figure(wanted, unit), figure(got, unit), around
    if kind == "min_sqnr_db":
        words, around = f"Output SQNR is at least {figure(wanted, 'dB')}", interval_words(clause.interval, "dB")
        return words, figure(wanted, "dB"), figure(got, "dB"), around
    if kind == "max_size_bytes":
        limit = f"{size(wanted)} ({wanted:,.0f} bytes)"
        return f"{who} quantized file is at most {limit}", limit, size(got), ""
    if kind == "max_latency_ratio":
        words = f"{who} latency is at most {times(wanted)} the FP32 latency"
        around = interval_words(clause.interval, "×").removesuffix(" ×")
        return words, times(wanted), times(got), around
    if kind == "goal":
        return f"Goal of the search: {metric} within {wanted:g}", f"{wanted:g}", f"{got:.5g}", ""
    if kind == SANITY:
        of = (unit or "%") if clause.metric != "sqnr_db" else "dB"
        words = f"Sanity check: {'output SQNR' if of == 'dB' else metric} is above {figure(wanted, of)}"
        return words, figure(wanted, of), figure(got, of), interval_words(clause.interval, of)
    if kind == _RUNTIME:
        words = "onnxruntime's optimizations do not change the outputs"
        return words, figure(wanted, "dB"), figure(got, "dB"), ""
    return f"{name(clause.clause)} {wanted:g}", f"{wanted:g}", f"{got:.5g}", around


def _why(clause: GateClause, unit: str) -> str:
    told = []
    if clause.interval is not None and _may_have_failed(clause, clause.interval):
        excluded = "the confidence interval also holds values that fail."
        if clause.clause == "max_drop":
            excluded = f"a drop of up to {changes.amount(clause.interval.high, unit)} cannot be excluded."
        told.append(f"Passed by the measured value; {excluded}")
    if clause.holds is None:
        told.append(sentence(clause.why or "the data cannot decide it"))
    elif clause.clause == SANITY and clause.why:
        told.append(sentence(clause.why))
    elif clause.got is None:
        told.append("Not measured.")
    if clause.samples_needed is not None:
        told.append(f"About {clause.samples_needed:,} samples would decide it.")
    if clause.confidence is not None:
        told.append(f"Required confidence: {clause.confidence * 100:g} %.")
    return " ".join(told)


def _may_have_failed(clause: GateClause, interval: Interval) -> bool:
    """True if the condition is met by what was measured, but not by all of its interval."""
    if not clause.holds or clause.confidence is not None:
        return False
    return interval.low < clause.wanted if is_lower_limit(clause) else interval.high > clause.wanted


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _plain(value: float, unit: str) -> str:
    return figure(value, unit).removesuffix(unit).rstrip() if unit else figure(value)
