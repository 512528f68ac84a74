"""Results of attempts to send, and when the next attempt is made."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_SUCCESS = range(200, 300)
# Databases and terminals disagree about them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# A receiver may ask for a later attempt, but not for one beyond this.
LONGEST_ASKED_SECONDS = 6 * 3600.0
_JITTER = (0.8, 1.2)


@dataclass(frozen=True)
class SendResult:
    """What an attempt met with."""

    status: int | None  # of HTTP; None if there was no reply
    error: str | None  # code of what kept it from one
    text: str  # the beginning of the reply, or what was wrong
    headers: Mapping[str, str] = field(default_factory=dict)  # of the reply, by their lower-case names
    final: bool = False  # another attempt would meet with the same

    @property
    def is_success(self) -> bool:
        """True for 2xx."""
        return self.status is not None and self.status in _SUCCESS


def excerpt(text: str, characters: int) -> str:
    """The beginning of a text without what databases and terminals disagree about."""
    return _CONTROL.sub(" ", text)[:characters]


def parse_schedule(text: str) -> tuple[float, ...]:
    """Pauses after the first, second ... failure, given by commas.

    Raises:
        ValueError: they are no such list.
    """
    try:
        pauses = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError("must be numbers of seconds, separated by commas, such as 5,30,120") from None
    if not all(0 < pause < float("inf") for pause in pauses):
        raise ValueError("must be positive, finite numbers")
    return pauses


def pause_seconds(attempt: int, schedule: Sequence[float], headers: Mapping[str, str]) -> float | None:
    """How long to wait after attempt number ``attempt`` has failed; None: that was the last one.

    Args:
        attempt: from 1 on.
        schedule: the pause after each attempt.
        headers: of the reply, by their lower-case names: what it asks for by Retry-After is heeded if it is longer.
    """
    if attempt > len(schedule):
        return None
    pause = schedule[attempt - 1] * random.uniform(*_JITTER)  # noqa: S311 - no secret
    return max(pause, min(_asked_seconds(headers.get("retry-after", "")), LONGEST_ASKED_SECONDS))


def _asked_seconds(header: str) -> float:
    """What Retry-After asks for: seconds, or a date (RFC 9110); 0 for anything else."""
    if header.strip().isascii() and header.strip().isdigit():
        return float(header)
    try:
        at = parsedate_to_datetime(header)
        return (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        return 0.0
