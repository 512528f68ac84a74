"""Due times: cron expressions in an IANA time zone.

The calendar is cronsim's, on local times without a zone; what happens where clocks are changed is decided here. Of an
expression that names its hours, a local time that is skipped is due right after the gap, once, and one that comes twice
is due the first time. Where the hours are ``*`` or ``*/n`` the expression means an interval: it is due at each local
time that comes, also the second time, and nothing is made up for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

MOST_CRON_CHARS = 128
MOST_ZONE_CHARS = 64
# Due times that a run tells to have taken the place of; what is more is not counted.
MOST_MISSED = 1000
_CRON = re.compile(r"[0-9A-Za-z*/,#-]+(?: [0-9A-Za-z*/,#-]+){4}")
# cronsim takes 5-5/2 for 5/2, every second from 5 on; to cron it is 5 alone
_RANGE_OF_ONE = re.compile(r"(?<![^ ,])(\w+)-\1/0*[1-9]\d*(?![^ ,])", re.IGNORECASE)
_EXAMPLE = "example: 0 3 * * *, every day at 03:00"
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")
_MINUTE = timedelta(minutes=1)
# No schedule is older, or asked for more: Python's calendar ends in the year 9999.
_LAST_YEAR = 9900


def check_cron(text: str) -> str:
    """The expression with single blanks and no range of one value, if it is one that is ever due.

    Raises:
        ValueError: says what is wrong.
    """
    cron = " ".join(text.split())
    if not _CRON.fullmatch(cron):
        raise ValueError(
            f"must have five fields with blanks between: minute, hour, day of month, month, day of week; {_EXAMPLE}"
        )
    cron = _RANGE_OF_ONE.sub(r"\1", cron)
    try:
        due = next(CronSim(cron, datetime(2000, 1, 1)), None)  # noqa: DTZ001 - a calendar without a zone
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        raise ValueError(f"is not a valid cron expression: {error}; {_EXAMPLE}") from None
    if due is None:
        raise ValueError("is never due")
    return cron


def described(cron: str) -> str:
    """A checked expression in words: "At 03:00 every day"."""
    return str(CronSim(cron, datetime(2000, 1, 1)).explain())  # noqa: DTZ001 - a calendar without a zone


def check_zone(name: str) -> str:
    """The name, if there is such a zone.

    Raises:
        ValueError: there is none.
    """
    if not _ZONE.fullmatch(name):
        raise ValueError("must be the name of an IANA time zone, such as Europe/Berlin")
    try:
        zone_of(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError("is not a known IANA time zone, such as Europe/Berlin") from None
    return name


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """The zone.

    Raises:
        ZoneInfoNotFoundError: there is none of this name.
    """
    return ZoneInfo(name)


def following(cron: str, zone_name: str, after: datetime) -> datetime | None:
    """The first due time after a moment, UTC; None where there is none for decades.

    Args:
        cron: of five fields; was checked.
        zone_name: likewise.
        after: aware.
    """
    zone = zone_of(zone_name)
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    if local.year > _LAST_YEAR:
        return None
    if cron.split(" ")[1].startswith("*"):
        return _following_interval(cron, zone, local, after)
    return next((due for due in map(_once(zone), CronSim(cron, local)) if due > after), None)


def latest(cron: str, zone_name: str, first: datetime, now: datetime) -> datetime:
    """The last due time that is not after ``now``; ``first``, which is one, where no later one is there yet."""
    low, high = first, now
    found = following(cron, zone_name, first)
    if found is None or found > now:
        return first
    # the due time after ``low`` has come, that after ``high`` has not
    while high - low > _MINUTE:
        middle = low + (high - low) / 2
        due = following(cron, zone_name, middle)
        if due is not None and due <= now:
            low, found = middle, due
        else:
            high = middle
    return found


@dataclass(frozen=True)
class Occasion:
    """What a schedule is due for at a moment."""

    due_at: datetime  # the due time that is to be dealt with
    missed: int  # how many before it nobody dealt with, at most ``MOST_MISSED``
    late_seconds: float  # since it should have been
    next_due_at: datetime | None  # the due time after it; None: there is none


def occasion(cron: str, zone_name: str, identity: str, jitter_seconds: int, first: datetime, now: datetime) -> Occasion:
    """What to deal with at ``now``, when ``first`` is the earliest due time that was not dealt with."""
    settled = max(first, now - timedelta(seconds=jitter_seconds))
    due = latest(cron, zone_name, first, settled)
    late = (now - fires_at(identity, jitter_seconds, due)).total_seconds()
    return Occasion(due, _count(cron, zone_name, first, due), max(0.0, late), following(cron, zone_name, due))


def fires_at(identity: str, jitter_seconds: int, due_at: datetime) -> datetime:
    """When what is due is dealt with: up to ``jitter_seconds`` later, always the same for a schedule and due time."""
    if jitter_seconds == 0:
        return due_at
    digest = hashlib.sha256(f"{identity}|{due_at.timestamp():.0f}".encode()).digest()
    return due_at + timedelta(seconds=jitter_seconds * int.from_bytes(digest[:4], "big") / 2**32)


def _count(cron: str, zone_name: str, first: datetime, end: datetime) -> int:
    """Due times from ``first`` on, before ``end``."""
    count, due = 0, first
    while due < end and count < MOST_MISSED:
        found = following(cron, zone_name, due)
        if found is None:
            break
        count, due = count + 1, found
    return count


class _once:  # noqa: N801 - a function with a zone
    """The moment of a local time: the first, where it comes twice; the end of the gap, where it is skipped."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def __call__(self, local: datetime) -> datetime:
        before = _moment(local, self._zone, fold=0)
        if _exists(before, local, self._zone):
            return before
        return _end_of_gap(_moment(local, self._zone, fold=1), before, self._zone)


def _following_interval(cron: str, zone: ZoneInfo, local: datetime, after: datetime) -> datetime | None:
    first = next((due for due in _moments(cron, zone, local, fold=0) if due > after), None)
    twice = _moment(local, zone, fold=1) - _moment(local, zone, fold=0)
    if twice <= timedelta(0):
        return first
    # within an hour that comes twice: what is due in its second half may be nearer
    second = next((due for due in _moments(cron, zone, local - twice - _MINUTE, fold=1) if due > after), None)
    return min((due for due in (first, second) if due is not None), default=None)


def _moments(cron: str, zone: ZoneInfo, local: datetime, *, fold: int) -> Iterator[datetime]:
    """The moments of local times that there are, from ``local`` on."""
    for due in CronSim(cron, local):
        moment = _moment(due, zone, fold=fold)
        if _exists(moment, due, zone):
            yield moment


def _moment(local: datetime, zone: ZoneInfo, *, fold: int) -> datetime:
    return local.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _exists(moment: datetime, local: datetime, zone: ZoneInfo) -> bool:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0) == local


def _end_of_gap(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """The moment after ``low``, and not after ``high``, at which the zone's offset changes; to the second."""
    offset = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high
