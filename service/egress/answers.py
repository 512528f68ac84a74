"""What an attempt to send something has met with, in a form that may be stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_SUCCESS = range(200, 300)
# Databases and terminals disagree about them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Answer:
    """What an attempt met with.

    Attributes:
        status: of HTTP; None if there was no reply.
        error: code of what kept it from one.
        text: the beginning of the reply, or what was wrong.
        headers: of the reply, by their lower-case names.
        final: another attempt would meet with the same.
    """

    status: int | None
    error: str | None
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    final: bool = False

    @property
    def is_success(self) -> bool:
        """True for 2xx."""
        return self.status is not None and self.status in _SUCCESS


def excerpt(text: str, characters: int) -> str:
    """The beginning of a text without what databases and terminals disagree about."""
    return _CONTROL.sub(" ", text)[:characters]
