"""When a delivery that failed is tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.egress.retries import LONGEST_ASKED_SECONDS, parse_schedule, pause_seconds
from service.settings import Settings

SCHEDULE = (5.0, 30.0, 120.0)


def test_pauses_grow_and_end() -> None:
    for attempt, mean in enumerate(SCHEDULE, start=1):
        found = [pause_seconds(attempt, SCHEDULE, {}) or 0.0 for _ in range(200)]
        assert 0.8 * mean <= min(found) < max(found) <= 1.2 * mean
    assert pause_seconds(len(SCHEDULE) + 1, SCHEDULE, {"retry-after": "60"}) is None


def test_a_date_is_heeded_as_seconds_are() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3590 < (pause_seconds(1, SCHEDULE, {"retry-after": at}) or 0.0) <= 3600
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    assert (pause_seconds(1, SCHEDULE, {"retry-after": past}) or 0.0) <= 6


DATES = st.text("0123456789 :,+-GMTJanFebSunMon", max_size=40)


@example(asked="Mon, 1 Jan 99999999999999999999 00:00:00 GMT")
@given(asked=st.one_of(st.text(), DATES, st.integers().map(str), st.just("9" * 5000)))
def test_whatever_is_asked_for_is_bounded(asked: str) -> None:
    found = pause_seconds(1, SCHEDULE, {"retry-after": asked})
    assert found is not None
    assert 4.0 <= found <= LONGEST_ASKED_SECONDS


@pytest.mark.parametrize("text", ["5,soon", "5,-1", "5,,30", "nan", "inf", "0"])
def test_a_schedule_that_is_none_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValidationError, match=r"seconds|longer"):
        Settings(webhook_retry_seconds=text)


def test_a_schedule_of_ones_own() -> None:
    assert parse_schedule(Settings(webhook_retry_seconds=" 1, 2.5 ").webhook_retry_seconds) == (1.0, 2.5)
