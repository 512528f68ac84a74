"""What a runner has told and the database does not know yet, in order."""

from __future__ import annotations

import threading

from sqlalchemy.orm import Session

from service.contracts.runner import LogLine, MetricLine, ProgressLine
from service.jobs import events, transitions

LOG_CHARS = 4000


class Journal:
    """Lines of one attempt: added by one thread, written by another.

    Args:
        job_id: of the job.
        attempt: whose lines they are.
    """

    def __init__(self, job_id: str, attempt: int) -> None:
        self._job_id = job_id
        self._attempt = attempt
        # Of each stage's progress only the newest.
        self._lines: list[ProgressLine | MetricLine | LogLine] = []
        self._written: list[ProgressLine | MetricLine | LogLine] = []
        self._lock = threading.Lock()

    @property
    def waiting(self) -> bool:
        """True if something was not written yet."""
        return bool(self._lines)

    def add(self, line: ProgressLine | MetricLine | LogLine) -> None:
        """Take a line; older progress of the same stage gives way."""
        with self._lock:
            if isinstance(line, ProgressLine):
                self._lines = [
                    item for item in self._lines if not (isinstance(item, ProgressLine) and item.stage == line.stage)
                ]
            self._lines.append(line)

    def write(self, session: Session) -> None:
        """Write all that waits; it goes on waiting until ``settle`` says that the transaction was committed."""
        with self._lock:
            self._written = list(self._lines)
        unwritten: list[events.Entry] = []
        for line in self._written:
            if not isinstance(line, ProgressLine):
                unwritten.append(_entry(line))
                continue
            if unwritten:
                events.append_all(session, self._job_id, self._attempt, unwritten)
                unwritten = []
            transitions.record_progress(session, self._job_id, self._attempt, line)
        if unwritten:
            events.append_all(session, self._job_id, self._attempt, unwritten)

    def settle(self) -> None:
        """What was written last is durable: forget it."""
        with self._lock:
            written = {id(line) for line in self._written}
            self._lines = [line for line in self._lines if id(line) not in written]
            self._written = []


def _entry(line: MetricLine | LogLine) -> events.Entry:
    """What the job's log tells of a line."""
    if isinstance(line, MetricLine):
        return "metric", {"stage": line.stage, "step": line.step, **line.values}
    return "log", {"level": line.level, "message": line.message[:LOG_CHARS]}
