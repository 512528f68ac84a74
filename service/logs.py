"""Logging of the processes: one line per record on standard error, as text or as JSON; repeated records are collapsed.

What is under way where a record is made (request, job, attempt, tenant, worker) is bound to the context by ``bound``.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from service.reports.figures import shown

MINUTE_SECONDS = 60.0
# Per minute: lines that are equal to the letter, and troubles that differ only in what they are about.
EQUAL_LINES = 5
SIMILAR_LINES = 100
# Kinds of lines that are counted at a time.
_KINDS = 2000
_SIMILAR = "like: "
# What messages of ours begin with.
_EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+(?=[ :]|$)")
Id = Literal["request_id", "job_id", "attempt", "tenant_id", "worker_id"]
_ids: ContextVar[Mapping[Id, str | int]] = ContextVar("log_ids", default=MappingProxyType({}))


@contextmanager
def bound(ids: Mapping[Id, str | int | None]) -> Iterator[None]:
    """Have all records of the block carry these, where they are known; threads that it starts do not know them."""
    token = _ids.set(_ids.get())
    try:
        bind(ids)
        yield
    finally:
        _ids.reset(token)


def bind(ids: Mapping[Id, str | int | None]) -> None:
    """Have the records carry these too, until the innermost ``bound`` ends."""
    _ids.set({**_ids.get(), **{name: value for name, value in ids.items() if value is not None}})


def _trace_ids() -> Mapping[str, str]:
    """Of the current span, without loading what would make one."""
    tracing = sys.modules.get("service.tracing")
    return {} if tracing is None else tracing.current_ids()


@dataclass
class _Count:
    begun_at: float
    seen: int = 0


class CollapsingHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error; of a line that is repeated over and over, only how often it came.

    Equal lines are collapsed whatever their level, similar ones from warnings on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int, str], _Count] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless the minute has had enough of its kind. Called under the handler's lock."""
        record.ids = {**_ids.get(), **_trace_ids()}  # those of this thread: what is settled below has none
        now = time.monotonic()
        self._settle(now)
        if self._counted((record.name, record.levelno, record.getMessage()), now) > EQUAL_LINES:
            return
        if record.levelno >= logging.WARNING:
            template = f"{_SIMILAR}{record.msg}"
            if self._counted((record.name, record.levelno, template), now) > SIMILAR_LINES:
                return
        super().emit(record)

    def _counted(self, kind: tuple[str, int, str], now: float) -> int:
        count = self._counts.setdefault(kind, _Count(now))
        count.seen += 1
        return count.seen

    def _settle(self, now: float) -> None:
        """Tell how often those came whose minute is over, and begin anew."""
        crowded = len(self._counts) > _KINDS
        over = []
        for kind, count in self._counts.items():
            # of too many the equal lines go first: a flood in which no two are equal is still counted as similar ones
            if now - count.begun_at >= MINUTE_SECONDS or (crowded and not kind[2].startswith(_SIMILAR)):
                over.append(kind)
            elif not crowded:
                break  # oldest first
        if crowded and len(over) < _KINDS // 2:
            over = list(self._counts)
        for kind in over:
            name, level, text = kind
            seen = self._counts.pop(kind).seen
            allowed = SIMILAR_LINES if text.startswith(_SIMILAR) else EQUAL_LINES
            if seen > allowed:
                told = f"{seen - allowed} more in the last minute: {text}"
                super().emit(logging.LogRecord(name, level, "", 0, told, None, None))


class LineFormatter(logging.Formatter):
    """Writes a record such that nothing in it can be taken for another one.

    Messages may hold names from files, paths of requests and the last words of a runner. What is no printable letter is
    written as its escape; lines after the first, as of a traceback, are indented, which no record's first line is.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        return "\n    ".join(shown(line) for line in super().format(record).split("\n"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the standard library
        """The first line: of a trouble within a request with the request's id, which its answer names too."""
        line = super().formatMessage(record)
        request_id = getattr(record, "ids", {}).get("request_id")
        return line if request_id is None or record.levelno < logging.WARNING else f"{line} request_id={request_id}"


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object in one line of ASCII: what it says, and the ids of what it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        message = record.getMessage()
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {"time": at, "level": record.levelname, "logger": record.name}
        event = _EVENT.match(message)
        if event is not None:
            document["event"] = event[0]
        document |= {"message": message, **getattr(record, "ids", {})}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


LogFormat = Literal["text", "json"]


def configure_logging(level: int = logging.INFO, form: LogFormat = "text") -> None:
    """One line per record on standard error, UTC."""
    lines = LineFormatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    lines.converter = time.gmtime
    handler = CollapsingHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else lines)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # What the first says of every revision, and the second at every connection, is of no use.
    for noisy in ("alembic", "kombu.connection"):
        logging.getLogger(noisy).setLevel(max(level, logging.ERROR))
