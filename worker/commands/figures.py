"""Figures in words, as reports, evaluations and lists of jobs show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.contracts.report import Interval


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


def whole_words(share: float, seconds_left: float | None) -> str:
    """How far the whole has come, such as ``42 %, about 35 s left``."""
    left = "" if seconds_left is None or share >= 1.0 else f", about {duration_words(seconds_left)} left"
    return f"{100 * share:.0f} %{left}"


def duration_words(seconds: float) -> str:
    """Seconds, minutes or hours, whichever says most in few digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
