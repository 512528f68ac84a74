"""A line that comes over and over is written a few times and then counted, and nothing else is kept back."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from service import logs
from service.logs import EQUAL_LINES, MINUTE_SECONDS, SIMILAR_LINES, CollapsingHandler, configure_logging

Lines = Callable[[], list[str]]


class Clock:
    """Stands for the module's ``time``."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    return clock


@pytest.fixture
def handler(clock: Clock) -> CollapsingHandler:
    handler = CollapsingHandler()
    handler.setStream(io.StringIO())
    return handler


@pytest.fixture
def log(handler: CollapsingHandler) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.collapsing")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    logger.removeHandler(handler)
    logger.propagate = True


@pytest.fixture
def lines(handler: CollapsingHandler) -> Lines:
    """What was written so far."""
    return lambda: str(handler.stream.getvalue()).splitlines()


def test_equal_lines_are_written_a_few_times_and_then_counted(log: logging.Logger, lines: Lines, clock: Clock) -> None:
    for _ in range(EQUAL_LINES + 7):
        log.info("broker is away")
    assert lines() == ["broker is away"] * EQUAL_LINES
    clock.now += MINUTE_SECONDS
    log.info("something else")
    assert lines()[EQUAL_LINES:] == ["7 more in the last minute: broker is away", "something else"]
    for _ in range(EQUAL_LINES):
        log.info("broker is away")
    assert lines()[EQUAL_LINES + 2 :] == ["broker is away"] * EQUAL_LINES, "a new minute has its lines again"


@pytest.mark.parametrize("flood", [SIMILAR_LINES + 3, 10 * logs._KINDS])
def test_troubles_that_differ_only_in_what_they_are_about_are_one_kind(
    log: logging.Logger, lines: Lines, clock: Clock, flood: int
) -> None:
    """More than are counted at a time, too: that they are similar is not forgotten with them."""
    for number in range(flood):
        log.warning("job %d failed", number)
    assert lines() == [f"job {number} failed" for number in range(SIMILAR_LINES)]
    clock.now += MINUTE_SECONDS
    log.info("later")
    assert lines()[SIMILAR_LINES:] == [f"{flood - SIMILAR_LINES} more in the last minute: like: job %d failed", "later"]


def test_news_that_differ_are_all_written_and_levels_and_loggers_counted_apart(
    log: logging.Logger, lines: Lines
) -> None:
    other = log.getChild("other")
    for _ in range(EQUAL_LINES + 1):
        log.info("gone")
        log.warning("gone")
        other.info("gone")
    assert lines() == ["gone"] * (3 * EQUAL_LINES)
    for number in range(2 * SIMILAR_LINES):
        log.info("job %d succeeded", number)
    assert len(lines()) == 3 * EQUAL_LINES + 2 * SIMILAR_LINES


def test_a_traceback_is_written_with_its_line(log: logging.Logger, lines: Lines) -> None:
    try:
        int("no number")
    except ValueError:
        log.exception("it failed")
    assert lines()[0] == "it failed"
    assert lines()[-1].startswith("ValueError: ")


def test_memory_is_bounded_and_what_was_kept_back_is_told_before_it_is_forgotten(
    log: logging.Logger, lines: Lines, handler: CollapsingHandler
) -> None:
    """Without end, in one minute, lines that are all different: the counts are settled before their time."""
    for _ in range(EQUAL_LINES + 2):
        log.info("the first")
    for number in range(3 * logs._KINDS):
        log.info("line %d", number)
    assert len(handler._counts) <= logs._KINDS + 2
    assert lines().count("2 more in the last minute: the first") == 1
    assert sum(line.startswith("line ") for line in lines()) == 3 * logs._KINDS


def test_a_process_logs_through_it_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    # basicConfig closes what it replaces: pytest's own handlers are only lent out
    monkeypatch.setattr(root, "handlers", [])
    try:
        configure_logging()
        (handler,) = root.handlers
        assert isinstance(handler, CollapsingHandler)
        record = logging.LogRecord("worker", logging.WARNING, "", 0, "late by %s", ("1 s",), None)
        record.created, record.msecs = 0.0, 7.0
        assert handler.format(record) == "1970-01-01T00:00:00.007Z WARNING worker late by 1 s"
    finally:
        root.setLevel(level)
        root.handlers = kept
