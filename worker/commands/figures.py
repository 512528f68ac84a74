"""Figures in words, as reports, evaluations and lists of jobs show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from service.contracts.report import Interval, LatencyFigures

_POINTS = {"%": "points", "dB": "dB"}


def labelled(name: str, unit: str) -> str:
    """A metric's name with its unit."""
    return f"{name} ({unit})" if unit else name


def figure(value: float | None, unit: str, sign: str = "") -> str:
    """A metric's value: percent and dB to two places, what may be of any size to five digits."""
    return "-" if value is None else f"{value:{sign}{'.2f' if unit in ('%', 'dB') else '.5g'}}"


def short(value: float | None) -> str:
    """A value of any size to four digits."""
    return "-" if value is None else f"{value:.4g}"


def number(value: float | None, unit: str = "", digits: int = 2) -> str:
    """A value to so many places, with its unit."""
    return "-" if value is None else f"{value:.{digits}f}{' ' + unit if unit else ''}"


def span(interval: Interval | None, unit: str = "", sign: str = "") -> str:
    """Where a figure lies, to follow it: `` [84.0, 88.1]``; nothing where nobody knows."""
    if interval is None:
        return ""
    form = f"{sign}{'.1f' if unit in ('%', 'dB') else '.4g'}"
    return f" [{interval.low:{form}}, {interval.high:{form}}]"


def change(
    before: float | None,
    after: float | None,
    unit: str,
    *,
    better: Literal["higher", "lower"],
    drop_interval: Interval | None,
) -> str:
    """How far a metric moved, with where that lies: the drop's interval, turned round where more is better."""
    if before is None or after is None:
        return ""
    moved = drop_interval
    if moved is not None and better == "higher":
        moved = moved.model_copy(update={"low": -moved.high, "high": -moved.low})
    word = _POINTS.get(unit, "")
    return f"{figure(after - before, unit, sign='+')}{span(moved, unit, sign='+')} {word}".rstrip()


def bytes_words(count: int) -> str:
    """Bytes in the unit that says most in few digits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def size_words(before: int, after: int) -> str:
    """How many times smaller a file is, or larger."""
    ratio = before / after
    return f"{ratio:.2f}x smaller" if ratio >= 1 else f"{1 / ratio:.2f}x larger"


def speed_words(before: float | None, after: float | None, found: LatencyFigures | None) -> str:
    """How many times as fast, with the interval; told alone in reports of earlier versions."""
    if found is None:
        return f"{before / after:.2f}x as fast" if before and after else ""
    interval = found.ratio_interval
    told = f"{1 / found.ratio:.2f}x as fast ({1 / interval.high:.2f} to {1 / interval.low:.2f})"
    return f"{told}, undecided" if found.verdict == "undecided" else told


def whole_words(share: float, seconds_left: float | None) -> str:
    """How far the whole has come, such as ``42 % of the whole, about 35 s left``."""
    left = "" if seconds_left is None or share >= 1.0 else f", about {duration_words(seconds_left)} left"
    return f"{100 * share:.0f} % of the whole{left}"


def duration_words(seconds: float) -> str:
    """Seconds, minutes or hours, whichever says most in few digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
