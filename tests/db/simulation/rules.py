"""What must hold after every step of a history, whatever happened: the invariants of the state machine."""

from __future__ import annotations

from typing import Any

from service.tables.jobs import TERMINAL_STATES
from tests.db.simulation.store import Store

_JOBS = (
    "SELECT id, state, kind, attempt, interruptions, max_attempts, last_seq, row_version, lease_until, worker_id,"
    " report_job_id, cancel_requested_at, not_before, dispatched_at, deadline_at, waiting, model_id, finished_at,"
    " error, updated_at,"
    " (SELECT count(*) FROM job_events e WHERE e.job_id = jobs.id) AS events,"
    " (SELECT max(seq) FROM job_events e WHERE e.job_id = jobs.id) AS newest,"
    " (SELECT count(*) FROM job_events e WHERE e.job_id = jobs.id AND data LIKE '%job.succeeded%') AS successes,"
    " (SELECT count(*) FROM job_events e WHERE e.job_id = jobs.id AND e.attempt <"
    " (SELECT max(attempt) FROM job_events f WHERE f.job_id = e.job_id AND f.seq < e.seq)) AS steps_back,"
    " (SELECT count(*) FROM reports r WHERE r.job_id = jobs.id AND r.attempt = jobs.attempt) AS reports,"
    " (SELECT count(*) FROM artifacts a WHERE a.job_id = jobs.id) AS artifacts,"
    " (SELECT status FROM models m WHERE m.id = jobs.model_id) AS noun FROM jobs"
)
# Of a moment as a Julian day.
_ROUNDING_SECONDS = 0.001
_GROWING = ("attempt", "interruptions", "row_version", "last_seq")
_NOUN = {"succeeded": "ready", "failed": "rejected", "canceled": "rejected"}

Row = dict[str, Any]


class Rules:
    """The judge of one history."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before: dict[str, Row] = {}
        self._seen_changes = -1
        # rounds of the reconciler that a due job has waited for its message
        self._unsent: dict[str, int] = {}
        self.accepted: set[str] = set()

    def short(self, job_id: str) -> str:
        return f"job{sorted(self.accepted | {job_id}).index(job_id)}"

    def owns(self, job_id: str, attempt: int) -> bool:
        found = self._store.raw.execute("SELECT state, attempt FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return bool(found == ("running", attempt))

    def live(self) -> list[str]:
        return [job_id for job_id, row in self._before.items() if row["state"] not in TERMINAL_STATES]

    def check(self) -> None:
        """Judge what the last step did, if it did anything to the database."""
        changes = self._store.raw.total_changes
        if changes == self._seen_changes and self.accepted <= set(self._before):
            return
        self._seen_changes = changes
        cursor = self._store.raw.execute(_JOBS)
        names = [column[0] for column in cursor.description]
        rows: dict[str, Row] = {values[0]: dict(zip(names, values, strict=True)) for values in cursor}
        assert self.accepted <= set(rows), "I7: a job was accepted and is not there"
        assert set(self._before) <= set(rows), "I8: a job is gone"
        for job_id, row in rows.items():
            self._check_row(row)
            if job_id in self._before:
                self._check_change(self._before[job_id], row)
        self._before = rows

    def _check_row(self, row: Row) -> None:
        succeeded = row["state"] == "succeeded"
        quantized = succeeded and row["kind"] == "quantize"
        assert row["events"] == row["newest"] == row["last_seq"], "I4: the events have a gap"
        assert not row["steps_back"], "I4: an attempt wrote after a later one had"
        assert row["successes"] == succeeded, "succeeded other than once"
        assert (row["reports"] == 1) is quantized, "I2: success and report"
        assert (row["artifacts"] == 1) is quantized, "I3: artifacts of no success"
        assert (row["lease_until"] is not None) == (row["state"] == "running"), "I6"
        assert row["state"] != "running" or row["worker_id"] is not None, "I6"
        assert row["attempt"] - row["interruptions"] <= row["max_attempts"], "more attempts than the job has"
        if row["kind"] == "inspect_model":
            assert row["noun"] == _NOUN.get(row["state"], "validating"), "the model is not as its validation"

    def _check_change(self, before: Row, row: Row) -> None:
        if before["state"] in TERMINAL_STATES:
            assert row == before, "I1: a job that had ended changed"
        assert all(row[name] >= before[name] for name in _GROWING), "I4: a count went down"
        if before["cancel_requested_at"] is not None:
            assert row["state"] in ("running", "canceled", "failed"), "it went on although a cancel was promised"
        taken = row["attempt"] - before["attempt"]
        assert taken == 0 or (before["state"] == "queued" and taken == 1), "claimed while it was not to be had"
        if taken:
            now, deadline_at = self._store.now, before["deadline_at"]
            assert before["not_before"] <= now + _ROUNDING_SECONDS, "claimed before its time"
            assert deadline_at is None or deadline_at > now - _ROUNDING_SECONDS, "claimed too late"
        elif before["state"] == row["state"] == "running":
            assert row["worker_id"] == before["worker_id"], "two workers in one attempt"
        failed_by = "" if row["state"] != "failed" or before["state"] == "failed" else str(row["error"])
        if "lease-expired" in failed_by or "attempts-exhausted" in failed_by:
            assert row["attempt"] - row["interruptions"] == row["max_attempts"], "given up with attempts left"
        assert "lease-expired" not in failed_by or row["kind"] == "quantize", "silence rejected an upload"
        assert "deadline-exceeded" not in failed_by or row["kind"] == "quantize", "lack of time rejected an upload"

    def after_dispatch(self) -> None:
        """I9: judged after each round of a dispatcher that reached the broker."""
        cursor = self._store.raw.execute(
            "SELECT id FROM jobs WHERE state = 'queued' AND dispatched_at IS NULL AND not_before <= ?"
            " AND (deadline_at IS NULL OR deadline_at > ?)",
            (self._store.now - _ROUNDING_SECONDS, self._store.now + _ROUNDING_SECONDS),
        )
        self._unsent = {job_id: self._unsent.get(job_id, 0) + 1 for (job_id,) in cursor}
        assert all(rounds < 2 for rounds in self._unsent.values()), "I9: no message in two rounds"

    def check_end(self, requests: dict[str, str | None]) -> None:
        """Judge the whole history, once nothing goes wrong any more."""
        assert not self.live(), f"still {[self._before[job_id]['state'] for job_id in self.live()]}"
        assert set(requests.values()) == self.accepted, "a request is without its job"
        assert self.accepted == set(self._before), "I8: there are jobs that nobody asked for"
