"""The name that somebody meant who wrote another: in bounded time, whatever was written and however many there are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from rapidfuzz import fuzz, process

# Similarity in percent from which on a name is offered. Keys are few and alike: below 60 "overrides" is as near to
# "algorithms" as to others.
_CLOSE_KEY, _CLOSE_NAME = 60.0, 45.0
_STEM_CHARS = 3
# What is longer is no slip of the pen; of more names the first are looked at.
_MOST_CHARS, _MOST_NAMES = 300, 20_000
# Beyond so many wrong names of one request nobody reads what each may have meant.
MOST_SUGGESTIONS = 5


def nearest_key(key: str, names: Iterable[str]) -> str | None:
    """The key that was probably meant, if any; case, hyphens and underscores do not count."""
    if len(key) > _MOST_CHARS:
        return None
    folded = {_fold(name): name for name in names}
    wanted = _fold(key)
    found = process.extractOne(wanted, folded.keys(), scorer=fuzz.ratio, score_cutoff=_CLOSE_KEY)
    close = [] if found is None else [found[0]]
    if not close and len(wanted) >= _STEM_CHARS:
        close = [name for name in folded if name.startswith(wanted) or wanted.startswith(name)]
    return folded[close[0]] if close else None


def nearest_name(wanted: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``wanted``, letter case aside."""
    if len(wanted) > _MOST_CHARS:
        return None
    short = islice((name for name in known if len(name) <= _MOST_CHARS), _MOST_NAMES)
    folded = {name.casefold(): name for name in sorted(short)}
    found = process.extractOne(wanted.casefold(), folded.keys(), scorer=fuzz.ratio, score_cutoff=_CLOSE_NAME)
    return None if found is None else folded[found[0]]


def _fold(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")
