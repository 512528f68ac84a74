"""Changes from the float model to the quantized one: one wording, one sign and one judgement for every surface.

A change is quantized minus float, with its sign: in points where the metric is a share, else in its own unit. A ratio
of latencies is "1.80x faster" or "2.25x slower", a size "73.4 % smaller". Texts use the ASCII minus sign, which suits
terminals, JUnit and CSV; ``typeset`` turns it into U+2212 for pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import floor
from typing import Literal

from service.contracts.report.figures import Interval, LatencyFigures, MetricFigures

Better = Literal["higher", "lower"]
Direction = Literal["better", "worse", "same"]
ChangeTone = Literal["good", "bad", "plain"]
NOT_SIGNIFICANT = "no significant difference"
UNCHANGED = "no change"
UNDEFINED = "not defined"
NOT_REPRESENTATIVE = "not representative of the target"
# Units of fixed precision; what may be of any size is written to five digits.
_TWO_PLACES = ("%", "dB")
_SIGN = re.compile(r"(?<![\w.])-(?=[\d.])")
_LEAST_P = 0.001
_ARROWS = {("up", "better"): "▲", ("down", "worse"): "▼"}


@dataclass(frozen=True)
class Change:
    """One figure compared between two models.

    Attributes:
        words: the change, such as "-0.68 points", "2.25x slower" or "73.4 % smaller"; ASCII.
        direction: whether it is for the better, whichever way the figure has moved.
        moved: which way the figure has moved; "" for not at all.
        significant: whether it is more than chance; None: not known.
        interval: where the change is, such as "95 % CI: -1.10 to +0.20 points"; "" where nobody knows.
        cautious: whether it counts as better or worse only if it is known to be significant.
        is_signed: whether the words are a figure with its sign, and say no more.
    """

    words: str
    direction: Direction
    moved: Literal["up", "down", ""] = ""
    significant: bool | None = None
    interval: str = ""
    cautious: bool = False
    is_signed: bool = False

    @property
    def tone(self) -> ChangeTone:
        """The colour: good or bad; plain where there is no change, or one that may be chance."""
        if self.direction == "same" or self.is_untested or self.significant is False:
            return "plain"
        return "good" if self.direction == "better" else "bad"

    @property
    def is_untested(self) -> bool:
        """True if it takes a test to call the change better or worse, and none was made."""
        return self.cautious and self.significant is None

    @property
    def arrow(self) -> str:
        """Up for a figure that rose to the better, down for one that fell to the worse; "" for all others.

        Where less is better an arrow could be read either way: "2.25x slower" and "73.4 % smaller" need none. What is
        not significant is neither better nor worse.
        """
        return "" if self.significant is False else _ARROWS.get((self.moved, self.direction), "")

    @property
    def needs_judgement(self) -> bool:
        """True if neither the words nor an arrow tell whether it is for the better."""
        return self.is_signed and self.direction != "same" and not self.arrow

    @property
    def told(self) -> str:
        """The words, and that they are not significant where that is known."""
        unsure = self.significant is False and self.direction != "same" and self.words != NOT_SIGNIFICANT
        return f"{self.words} (not significant)" if unsure else self.words

    @property
    def judgement(self) -> str:
        """The direction in a word: "better", "worse", "no change", "not tested" or "not significant"."""
        if self.direction == "same":
            return UNCHANGED
        if self.is_untested:
            return "not tested"
        return "not significant" if self.significant is False else self.direction


_UNDEFINED = Change(UNDEFINED, "same")


def typeset(words: str) -> str:
    """The text with a typographic minus sign (U+2212) in front of numbers; exponents stay as they are."""
    return _SIGN.sub("\N{MINUS SIGN}", words)


def amount(value: float, unit: str) -> str:
    """A difference without its sign, such as "0.68 points" or "0.0123 m"."""
    return f"{_digits(abs(value), unit)} {_unit(unit)}".rstrip()


def signed(value: float, unit: str) -> str:
    """A difference with its sign, such as "-0.68 points"; zero has none."""
    return f"{_signed_digits(value, unit)} {_unit(unit)}".rstrip()


def metric_change(
    drop: float | None, unit: str, *, better: Better = "higher", drop_interval: Interval | None = None
) -> Change:
    """The change of a metric.

    Args:
        drop: change for the worse, in the metric's unit, as reports and gates keep it; None: not defined.
        unit: of the metric; "%" gives points.
        better: which direction is the better one.
        drop_interval: where the drop is.
    """
    if drop is None:
        return _UNDEFINED
    sign = -1.0 if better == "higher" else 1.0
    interval, significant = "", None
    if drop_interval is not None:
        interval = interval_words(turned(drop_interval, sign), unit)
        significant = drop_interval.low > 0 or drop_interval.high < 0
    if not float(_digits(drop, unit)):
        return Change(UNCHANGED, "same", significant=significant, interval=interval)
    value = sign * drop
    return Change(
        signed(value, unit),
        "worse" if drop > 0 else "better",
        "up" if value > 0 else "down",
        significant,
        interval,
        is_signed=True,
    )


def difference_change(before: float | None, after: float | None, unit: str, *, better: Better = "higher") -> Change:
    """The change of a figure from one model, or job, to another."""
    if before is None or after is None:
        return _UNDEFINED
    return metric_change((before - after) * (1.0 if better == "higher" else -1.0), unit, better=better)


def change_of(metric: MetricFigures) -> Change:
    """The change of a metric of a report."""
    return metric_change(metric.drop, metric.unit, better=metric.better, drop_interval=metric.drop_interval)


def outlined_change(
    before: float | None, after: float | None, drop: float | None, unit: str, interval: Interval | None = None
) -> Change:
    """The change of a metric in lists of jobs, which keep both values and the drop, not the better direction.

    Args:
        before: value of the float model.
        after: value of the quantized one.
        drop: change for the worse.
        unit: of the metric.
        interval: where the drop is.
    """
    if drop is None:
        return _UNDEFINED
    falls = before is None or after is None or (after < before) == (drop > 0)
    change = metric_change(drop, unit, better="higher" if falls else "lower", drop_interval=interval)
    return replace(change, cautious=True)


def interval_words(change: Interval | None, unit: str) -> str:
    """Where a signed change is, such as "95 % CI: -1.10 to +0.20 points"; "" for None."""
    if change is None:
        return ""
    return f"{confidence_words(change)}: {_signed_digits(change.low, unit)} to {signed(change.high, unit)}"


def latency_change(ratio: float | None, interval: Interval | None = None, *, significant: bool | None = None) -> Change:
    """The change of latency.

    Args:
        ratio: quantized over float; None or 0: not measured.
        interval: where it is.
        significant: whether one model is known to be faster; None: as the interval says.
    """
    if ratio is None or ratio <= 0:
        return Change("not measured", "same")
    told = ""
    if interval is not None:
        told = f"{confidence_words(interval)}: {_interval_ratios(interval)}"
        if significant is None:
            significant = interval.high < 1 or interval.low > 1
    direction: Direction = "better" if ratio < 1 else "worse"
    if significant is False:
        return Change(NOT_SIGNIFICANT, direction, "", significant, told)
    if round(max(ratio, 1 / ratio), 2) == 1:
        return Change(UNCHANGED, "same", "", significant, told)
    return Change(ratio_words(ratio), direction, "down" if ratio < 1 else "up", significant, told)


def pairs_note(before: float | None, after: float | None, change: Change) -> str:
    """What follows a change of latencies, a median of pairs, that is not the quotient of the figures beside it."""
    if not before or not after or not change.moved or change.words == ratio_words(after / before):
        return ""
    return " (median of pairs)"


def latency_change_of(latency: LatencyFigures) -> Change:
    """The change of latency of a report; none where the target was simulated on another CPU."""
    if latency.not_representative is not None:
        return Change(NOT_REPRESENTATIVE, "same")
    return latency_change(latency.ratio, latency.ratio_interval, significant=latency.verdict != "undecided")


def p_words(p_value: float | None) -> str:
    """A p-value for people, such as "p = 0.0432": below a thousandth its size tells nobody anything."""
    if p_value is None:
        return ""
    return "p < 0.001" if p_value < _LEAST_P else f"p = {p_value:.3g}"


def ratio_words(ratio: float) -> str:
    """A ratio of latencies as "1.80x faster" or "2.25x slower"."""
    if ratio <= 0:
        return "not measured"
    factor = round(max(ratio, 1 / ratio), 2)
    if factor == 1:
        return UNCHANGED
    return f"{factor:.2f}x {'faster' if ratio < 1 else 'slower'}"


def size_change(before: float | None, after: float | None) -> Change:
    """The change of a size in bytes, such as "73.4 % smaller"."""
    if before is None or after is None or before <= 0:
        return _UNDEFINED
    percent = f"{abs(100 * (1 - after / before)):.1f}"
    if not float(percent):
        return Change(UNCHANGED, "same")
    smaller = after < before
    words = f"{percent} % {'smaller' if smaller else 'larger'}"
    return Change(words, "better" if smaller else "worse", "down" if smaller else "up")


def _interval_ratios(interval: Interval) -> str:
    faster, slower = interval.high < 1, interval.low > 1
    if faster or slower:
        low, high = (interval.high, interval.low) if faster else (interval.low, interval.high)
        return f"{max(low, 1 / low):.2f}x to {ratio_words(high)}" if low > 0 < high else "not measured"
    return f"{ratio_words(interval.low)} to {ratio_words(interval.high)}"


def turned(interval: Interval, sign: float) -> Interval:
    """The interval of a figure that is written with this sign."""
    if sign > 0:
        return interval
    return interval.model_copy(update={"low": -interval.high, "high": -interval.low})


def confidence_words(interval: Interval) -> str:
    """Such as "95 % CI"."""
    # Rounded down: order statistics have confidences such as 99.9998 %, whose digits tell nobody anything.
    return f"{floor(round(interval.confidence * 1000, 6)) / 10:g} % CI"


def _unit(unit: str) -> str:
    return "points" if unit == "%" else unit


def _digits(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit in _TWO_PLACES else f"{value:.5g}"


def _signed_digits(value: float, unit: str) -> str:
    digits = _digits(abs(value), unit)
    if not float(digits):
        return digits
    return f"{'-' if value < 0 else '+'}{digits}"
