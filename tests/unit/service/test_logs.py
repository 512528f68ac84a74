"""A line that comes over and over is written a few times and then counted, and nothing else is kept back."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from service import logs
from service.logs import (
    EQUAL_LINES,
    MINUTE_SECONDS,
    SIMILAR_LINES,
    CollapsingHandler,
    JsonFormatter,
    bind,
    bound,
    configure_logging,
)

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


def test_json_is_a_line_with_an_event_what_it_belongs_to_and_its_exception(
    log: logging.Logger, lines: Lines, handler: CollapsingHandler
) -> None:
    handler.setFormatter(JsonFormatter())
    with bound({"request_id": "req_1", "tenant_id": None}):
        bind({"tenant_id": "acme"})
        log.info("upload.completed id=%s \u2028 \x1b[31m\nsecond line", "upl_1")
        try:
            int("no number")
        except ValueError:
            log.exception("it failed")
    log.info("model.onnx is no event")
    first, second, last = map(json.loads, lines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "INFO", "logger": "tests.collapsing", "event": "upload.completed", "request_id": "req_1",
        "tenant_id": "acme", "message": "upload.completed id=upl_1 \u2028 \x1b[31m\nsecond line",
    }  # fmt: skip
    assert second["exception"].endswith("ValueError: invalid literal for int() with base 10: 'no number'")
    assert set(last) == {"time", "level", "logger", "event", "message"}, "what was bound is gone"
    assert all(line.isascii() for line in lines())


def test_what_was_kept_back_is_told_in_json_without_the_ids_of_who_comes_next(
    log: logging.Logger, lines: Lines, handler: CollapsingHandler, clock: Clock
) -> None:
    handler.setFormatter(JsonFormatter())
    clock.now += MINUTE_SECONDS
    for number in range(EQUAL_LINES + 2):
        with bound({"request_id": f"req_{number}"}):
            log.info("broker is away")
    clock.now += MINUTE_SECONDS
    with bound({"request_id": "req_last"}):
        log.info("another")
    *_, told, last = map(json.loads, lines())
    assert (told["message"], last["request_id"]) == ("2 more in the last minute: broker is away", "req_last")
    assert "request_id" not in told


def test_threads_and_blocks_within_blocks_have_their_own_ids(
    log: logging.Logger, lines: Lines, handler: CollapsingHandler
) -> None:
    handler.setFormatter(JsonFormatter())
    with bound({"job_id": "job_1", "attempt": 1}):
        with bound({"attempt": 2}):
            log.info("inner")
        log.info("outer")
        thread = threading.Thread(target=log.info, args=("beside",))
        thread.start()
        thread.join()
    told = {line["message"]: (line.get("job_id"), line.get("attempt")) for line in map(json.loads, lines())}
    assert told == {"inner": ("job_1", 2), "outer": ("job_1", 1), "beside": (None, None)}


def test_a_trouble_of_a_request_names_it_in_text_too(
    log: logging.Logger, lines: Lines, handler: CollapsingHandler
) -> None:
    handler.setFormatter(logs.LineFormatter("%(levelname)s %(message)s"))
    with bound({"request_id": "req_1"}):
        log.info("fine")
        log.warning("odd")
    log.warning("of no request")
    assert lines() == ["INFO fine", "WARNING odd request_id=req_1", "WARNING of no request"]
