"""Names from a model, made fit to be shown: a model may call its nodes as it likes."""

from __future__ import annotations

import unicodedata

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
