"""Regular expressions of users, by an engine whose time is linear in the text, whatever the expression (RE2).

Nothing else may evaluate what a user has written: Python's own engine can take for ever over a few characters.
Reference: Cox, Regular Expression Matching in the Wild (2010).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

# Of one compiled expression: what does not fit is refused, after a fraction of a millisecond.
_MOST_MEMORY_BYTES = 64 << 10
MOST_CHARS = 1000


class PatternError(ValueError):
    """It is no regular expression, or one that cannot be matched in linear time or is too large."""


class Pattern(Protocol):
    """What is asked of a compiled expression."""

    def fullmatch(self, text: str) -> object | None:
        """Something, if the whole text matches."""
        ...


@lru_cache(maxsize=4096)
def compiled(text: str) -> Pattern:
    """The expression, ready to match.

    Raises:
        PatternError: says in words what is wrong with it.
    """
    if len(text) > MOST_CHARS:
        raise PatternError(f"longer than {MOST_CHARS} characters")
    options = re2.Options()
    options.max_mem, options.log_errors = _MOST_MEMORY_BYTES, False
    try:
        return cast(Pattern, re2.compile(text, options))
    except re2.error as error:
        told = error.args[0] if error.args else ""
        words = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        hint = "the syntax is RE2's, which has no look-around and no back-references"
        raise PatternError(f"{words} ({hint})") from None
