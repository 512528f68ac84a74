"""Figures and names in words, written in one way wherever they stand; a model may call its nodes as it likes."""

from __future__ import annotations

import unicodedata

from service.contracts import changes

NOTHING = "–"
_KIB = 1024
_MINUTE, _WHOLE_FROM = 60, 10
_TWO_PLACES = ("%", "dB", "points", "×")
_TENTH_OF_A_MS = 0.1


def figure(value: float | None, unit: str = "") -> str:
    """A value with its unit: percent, dB and ratios to two places, what may be of any size to five digits."""
    if value is None:
        return NOTHING
    number = f"{value + 0.0:.2f}" if unit in _TWO_PLACES else f"{value:.5g}"
    return f"{number} {unit}".rstrip()


def change(value: float | None, unit: str) -> str:
    """A change with its sign; of percentages in points."""
    return NOTHING if value is None else changes.signed(value, unit)


def size(count: float | None) -> str:
    """Bytes in the unit that suits them."""
    if count is None:
        return NOTHING
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < _KIB:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= _KIB
    return f"{value:.2f} GiB"


def milliseconds(value: float | None, beside: float | None = None) -> str:
    """Milliseconds; in microseconds where it, or the value that it stands beside, is very short."""
    if value is None:
        return NOTHING
    least = min(abs(one) for one in (value, beside) if one is not None)
    return f"{value * 1000:.1f} µs" if least < _TENTH_OF_A_MS else f"{value:.2f} ms"


def seconds(value: float) -> str:
    """Seconds, of long times whole ones; from a minute on in minutes."""
    whole = round(value)
    if whole >= _MINUTE:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole} s" if value >= _WHOLE_FROM else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent."""
    return NOTHING if value is None else f"{value:.{digits}f} %"


def times(value: float) -> str:
    """A ratio that is not a change, such as a limit: "0.80x"."""
    return f"{value:.2f}x"


# The metrics that are measured unless others are declared, as a heading shows them.
_TITLES = {"top1": "Top-1 accuracy", "top5": "Top-5 accuracy", "top1_agreement": "Top-1 agreement"}


def metric_title(metric: str) -> str:
    """A metric in a heading or a sentence; declared ones keep the name that they were given."""
    return _TITLES.get(metric, name(metric))


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things, such as "1 layer" and "2,000 layers"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# Names from a model, made fit to be shown: a model may call its nodes as it likes.

NAME_CHARACTERS = 96
PROSE_CHARACTERS = 1500
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: str) -> str:
    """The text with every character that cannot be seen, or that turns the writing around, as its escape.

    Controls, marks of direction, lone surrogates and what Unicode has not assigned: none of them reaches a document.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def name(text: str, most: int = NAME_CHARACTERS) -> str:
    """A name as it is shown, its middle left out where it is longer than ``most`` characters."""
    seen = shown(text[: most * 20] if len(text) > most * 40 else text)
    if len(seen) <= most:
        return seen
    tail = most // 3
    return f"{seen[: most - tail - 1]}…{shown(text[-tail:])[-tail:]}"


def prose(text: str, most: int = PROSE_CHARACTERS) -> str:
    """A sentence that may hold names, its end left out where it is longer than ``most`` characters."""
    seen = shown(text)
    return seen if len(seen) <= most else f"{seen[: most - 1]}…"


def _escaped(letter: str) -> str:
    if letter in _NAMED:
        return _NAMED[letter]
    if unicodedata.category(letter) == "Zs":
        return " "
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
