"""References: the ways in which a request may name a version of a model or a dataset, apart from its id."""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.contracts.texts import plain_text

# The newest ready version of a name; no alias is called so.
LATEST = "latest"
MOST_ALIAS_CHARS = 64
MOST_NAME_CHARS = 200
# A name, the sign, and an alias, which is longer than a number or LATEST.
MOST_REFERENCE_CHARS = MOST_NAME_CHARS + 1 + MOST_ALIAS_CHARS
MOST_VERSION = 2**31 - 1
SIGN = "@"
ALIAS = r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*"
_ALIAS = re.compile(ALIAS)
_VERSION = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True)
class Reference:
    """``NAME@3``, ``NAME@latest`` or ``NAME@prod``: a name with either a version or a word, which may be LATEST."""

    name: str
    version: int | None = None
    word: str | None = None

    def __str__(self) -> str:
        return f"{self.name}{SIGN}{self.version if self.word is None else self.word}"


def parse(text: str) -> Reference | None:
    """The reference that ``text`` is; None for anything else. Names may hold the sign: the last one parts them."""
    name, sign, rest = text.rpartition(SIGN)
    if not sign or not is_name(name):
        return None
    if _VERSION.fullmatch(rest) and int(rest) <= MOST_VERSION:
        return Reference(name, version=int(rest))
    return Reference(name, word=rest) if rest == LATEST or is_alias(rest) else None


def is_alias(word: str) -> bool:
    """True for what may be an alias: words of lower-case letters and digits, joined by single ``.``, ``_`` or ``-``."""
    return len(word) <= MOST_ALIAS_CHARS and word != LATEST and _ALIAS.fullmatch(word) is not None


def is_name(text: str) -> bool:
    """True for what may be a name: what may not is not looked for."""
    try:
        plain_text(text)
    except ValueError:
        return False
    return 1 <= len(text) <= MOST_NAME_CHARS
