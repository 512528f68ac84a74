"""When schedules are due, against a clock on the wall that is watched minute by minute through both changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.schedules.times import MOST_MISSED, check_cron, check_zone, fires_at, following, latest, occasion
from tests.support.each import each

MINUTE = timedelta(minutes=1)
# Zones and days on which their clocks are changed: by an hour, half an hour, at midnight, by a whole day, and never.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"), "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"), "America/Sao_Paulo": ("2018-02-18", "2018-11-04"),
    "Asia/Beirut": ("2024-03-31", "2024-10-27"), "Pacific/Apia": ("2011-12-30", "2011-12-31"),
    "America/Caracas": ("2016-05-01", "2007-12-09"), "UTC": ("2026-03-29", "2026-10-25"),
}  # fmt: skip


def field(text: str, low: int, high: int) -> set[int]:
    """What one field of numbers, ranges, steps and lists means."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, dash, last = span.partition("-")
        start, end = (low, high) if span == "*" else (int(first), int(last) if dash else int(first))
        found |= set(range(start, (high if step and not dash else end) + 1, int(step or 1)))
    return found


def matches(cron: str, local: datetime) -> bool:
    minute, hour, day, month, weekday = cron.split()
    by_day = local.day in field(day, 1, 31)
    by_weekday = (local.weekday() + 1) % 7 in {found % 7 for found in field(weekday, 0, 7)}
    both = day.startswith("*") or weekday.startswith("*")
    return (
        local.minute in field(minute, 0, 59)
        and local.hour in field(hour, 0, 23)
        and local.month in field(month, 1, 12)
        and (by_day and by_weekday if both else by_day or by_weekday)
    )


def watched(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """A daemon that looks at the wall every minute; it knows no offset, only what the clock shows."""
    due: list[datetime] = []
    furthest = (start - MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    moment = start
    while moment < end:
        shown = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if cron.split()[1].startswith("*"):
            if matches(cron, shown):
                due.append(moment)
        else:
            # every time that the clock has come to, or jumped over, for the first time
            unseen = []
            while furthest < shown:
                furthest += MINUTE
                unseen.append(furthest)
            if any(matches(cron, time) for time in unseen):
                due.append(moment)
        moment += MINUTE
    return due


def computed(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    due, found = [], following(cron, zone, start - MINUTE)
    while found is not None and found < end:
        due.append(found)
        found = following(cron, zone, found)
    return due


def around(day: str) -> tuple[datetime, datetime]:
    # The watch begins long before the change, so that what its clock has shown is what clocks had shown.
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    return noon - timedelta(hours=40), noon + timedelta(hours=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cron",
    [
        "30 2 * * *",
        "*/20 2 * * *",
        "0 */2 * * *",
        *(pytest.param(cron, marks=pytest.mark.long) for cron in ("0 0 * * *", "15,45 1-3 * * *", "*/10 * * * *")),
        *(pytest.param(cron, marks=pytest.mark.long) for cron in ("7 * * * *", "59 23 * * 0")),
    ],
)
def test_both_changes_of_the_clocks(cron: str) -> None:
    for zone, days in CHANGES.items():
        for day in days:
            start, end = around(day)
            assert computed(cron, zone, start, end) == watched(cron, zone, start, end), (zone, day)


@st.composite
def crons(draw: st.DrawFn) -> str:
    def one(low: int, high: int) -> str:
        kind = draw(st.sampled_from(("*", "*/", "number", "range", "list")))
        a, b = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
        step = draw(st.integers(1, 12))
        return {"*": "*", "*/": f"*/{step}", "number": f"{a}", "range": f"{a}-{b}/{step}", "list": f"{a},{b}"}[kind]

    # dates of all kinds are the library's business; a day that is none would leave nothing to compare
    day, weekday = draw(st.sampled_from(("*", one(1, 28)))), draw(st.sampled_from(("*", one(0, 6))))
    return f"{one(0, 59)} {one(0, 23)} {day} * {weekday}"


@pytest.mark.slow
@given(cron=crons(), zone=st.sampled_from(sorted(CHANGES)), change=st.integers(0, 1), shift=st.integers(0, 600))
def test_any_expression_on_any_clock(cron: str, zone: str, change: int, shift: int) -> None:
    start, end = around(CHANGES[zone][change])
    start += timedelta(minutes=shift)
    expected = [due for due in watched(cron, zone, start - timedelta(hours=26), end) if due >= start]
    assert computed(check_cron(cron), zone, start, end) == expected


@given(cron=crons(), zone=st.sampled_from(sorted(CHANGES)), minutes=st.integers(0, 3000))
def test_the_last_due_time_is_the_last_of_all(cron: str, zone: str, minutes: int) -> None:
    start, _ = around(CHANGES[zone][0])
    first = following(cron, zone, start)
    assert first is not None
    now = first + timedelta(minutes=minutes, seconds=7)
    every = [first, *computed(cron, zone, first + MINUTE, now + timedelta(seconds=1))]
    assert latest(cron, zone, first, now) == every[-1]
    dealt = occasion(cron, zone, "sch_1", 0, first, now)
    assert dealt.missed == min(len(every) - 1, MOST_MISSED)
    assert dealt.late_seconds == (now - every[-1]).total_seconds()
    assert dealt.next_due_at == following(cron, zone, every[-1])


def test_a_clock_that_is_years_ahead_is_no_reason_to_count_them() -> None:
    first = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
    dealt = occasion("* * * * *", "Europe/Berlin", "sch_1", 0, first, first + timedelta(days=3650))
    assert dealt.due_at == first + timedelta(days=3650)
    assert dealt.missed == MOST_MISSED


def test_jitter_is_the_same_everywhere_and_leaves_nothing_out() -> None:
    due = [datetime(2026, 1, 1, 2, k, tzinfo=UTC) for k in range(60)]
    fired = [fires_at("sch_1", 600, moment) for moment in due]
    assert fired == [fires_at("sch_1", 600, moment) for moment in due]
    delays = [(fire - moment).total_seconds() for fire, moment in zip(fired, due, strict=True)]
    assert all(0 <= delay < 600 for delay in delays)
    assert max(delays) - min(delays) > 300, "it does not spread"
    assert [fires_at("sch_2", 600, moment) for moment in due] != fired
    # what is due later, and may not have its turn yet, does not take the place of the first
    at = fired[0] + timedelta(seconds=1)
    assert occasion("* * * * *", "UTC", "sch_1", 600, due[0], at).due_at == due[0]


@each(
    "text",
    ["", "* * * *", "* * * * * *", "60 * * * *", "0 24 * * *", "0 0 30 2 *", "@daily", "0 0 * * MON#6", "a b c d e",
     "*/0 * * * *", "1-0 * * * *", "0 0 L-1 * *", "0 0 1W * *", "9" * 200 + " * * * *", "0\n0 * * * ;"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError, match=r"must have|is not a valid cron|is never due"):
        check_cron(text)


@given(st.lists(st.text("0123456789*/,-LW#MONJAN", min_size=1, max_size=8), min_size=5, max_size=5))
def test_no_text_is_an_accident(fields: list[str]) -> None:
    try:
        cron = check_cron(" ".join(fields))
    except ValueError:
        return
    assert following(cron, "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC)) is not None


@each("name", ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe", "UTC\0", "a" * 80])
def test_what_is_no_zone(name: str) -> None:
    with pytest.raises(ValueError, match=r"IANA time zone"):
        check_zone(name)


@each(
    ("text", "means"),
    [
        ("* 0-0/1 * * *", "* 0 * * *"),
        ("7,5-5/15 0-10/2 * * mon-MON/2", "7,5 0-10/2 * * mon"),
        ("5-55/5 * * * *", "5-55/5 * * * *"),
        ("  0   2 * *  MON-FRI ", "0 2 * * MON-FRI"),
    ],
)
def test_a_range_of_one_value_is_that_value_and_blanks_do_not_matter(text: str, means: str) -> None:
    assert check_cron(text) == means
