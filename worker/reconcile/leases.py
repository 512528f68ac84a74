"""Expires leases (unless the database was unavailable) and deadlines; handles clocks that were set back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from service import repository
from service.db import Database
from service.jobs import transitions
from service.monitoring.declarations import LEASES_EXPIRED
from worker.lease import DATABASE_AWAY
from worker.repository import Round, last_round, note_round

_ROUND_JOBS = 100
log = logging.getLogger(__name__)


class LeaseKeeper:
    """Expires leases, but not those that ran out only because nobody could renew them.

    After the database was away or took no writes, or this process was away (frozen together with the workers, with the
    whole machine perhaps), every lease is first made good for its whole time again: living workers renew it, of the
    others nothing is heard until it ends. Nor does the absence count against the deadlines of queued jobs.

    An absence that it saw itself is believed every time. One that it concludes from a pause between two rounds is
    believed for two leases from the first of a row of them, and a row ends when leases had the time to end: what one
    reconciler did stands in the database for the next, so that one that is started or stopped over and over keeps no
    lease from its end.

    Args:
        database: where jobs are; its clock alone is asked.
        lease_seconds: for which a lease is good. It is renewed six times in that time, and workers need some of the
            rest to come back: after a pause of half of it any may have run out unseen.
        is_new: this process has just started, perhaps together with the database: whether anybody has looked after the
            leases a moment ago is asked there.
    """

    def __init__(self, database: Database, *, lease_seconds: float, is_new: bool = True) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._is_new = is_new
        self._away = False
        # When a round last came to its end, and when one last spared leases.
        self._served_at: float | None = None
        self._spared_at = 0.0

    def expire(self) -> int:
        """Take running jobs away from workers that fell silent; returns how many."""
        try:
            with self._database.write() as session:
                now = repository.now_seconds(session)
                last = last_round(session)
                spared_at = None if last is None else last.spared_at
                spared, jobs = 0, []
                if self._away or (self._is_pause(last, now) and self._is_believed(last)):
                    spared = transitions.spare_leases(session, lease_seconds=self._lease_seconds)
                    spared_at = now if self._away or spared_at is None else spared_at
                    self._spared_at = now
                else:
                    transitions.try_to_write(session, lease_seconds=self._lease_seconds)
                    jobs = transitions.expire_leases(session, limit=_ROUND_JOBS, ended_by=now)
                    if spared_at is not None and now - max(spared_at, self._spared_at) >= self._lease_seconds:
                        spared_at = None
                if last is None or last.spared_at != spared_at or now - last.served_at > self._lease_seconds / 8:
                    note_round(session, Round(now, spared_at))
            if self._served_at is not None and self.is_behind(now):
                with self._database.write() as session:  # another one: who holds some jobs waits for no others
                    deferred = transitions.defer_deadlines(session, datetime.fromtimestamp(self._served_at, UTC))
                log.warning("deadlines.deferred jobs=%d seconds=%.1f", deferred, now - self._served_at)
        except DATABASE_AWAY:
            self._away = True
            raise
        except Exception:
            self._served_at = None  # deadlines do not wait for a round that may never come to its end
            raise
        self._served_at, self._away, self._is_new = now, False, False
        if spared:
            log.warning("leases.spared jobs=%d seconds=%.1f", spared, self._lease_seconds)
        LEASES_EXPIRED.inc(len(jobs))
        for job in jobs:
            log.warning("job.lease_expired job_id=%s attempt=%d state=%s", job.id, job.attempt, job.state)
        return len(jobs)

    def is_behind(self, now: float) -> bool:
        """True if so much time has passed since the last round that deadlines have yet to be put off by it.

        Args:
            now: by the database's clock.
        """
        return self._served_at is not None and now - self._served_at > self._lease_seconds

    def _is_pause(self, last: Round | None, now: float) -> bool:
        """True if leases may have run out since the last round: of this process, or, for a new one, of any."""
        if self._served_at is not None:
            return now - self._served_at > self._lease_seconds / 2
        return self._is_new and (last is None or abs(now - last.served_at) > self._lease_seconds / 2)

    def _is_believed(self, last: Round | None) -> bool:
        """False once a row of pauses has kept leases from their ends for twice their time."""
        if last is None or last.spared_at is None:
            return True
        return last.served_at - last.spared_at < 2 * self._lease_seconds


def expire_deadlines(database: Database, *, is_behind: Callable[[float], bool] = lambda now: False) -> int:
    """Fail jobs whose deadline has passed, or queue them again, which gives validation of uploads more time; returns
    how many; 0 while deadlines have yet to be put off by an absence: ``is_behind`` is told the database's time.
    """
    with database.write() as session:
        now = repository.now_seconds(session)
        if is_behind(now):
            return 0
        jobs = transitions.expire_deadlines(session, ended_by=now)
    for job in jobs:
        log.warning("job.deadline_passed job_id=%s attempt=%d state=%s", job.id, job.attempt, job.state)
    return len(jobs)


def bring_forward(database: Database, *, lease_seconds: float) -> int:
    """Let jobs start that would otherwise wait until a clock that was put back is there again, and leases end that
    would otherwise last until then; returns how many. A lease is good for ``lease_seconds``.
    """
    with database.read() as session:
        queued = transitions.queued_ahead(session)
        leased = transitions.leased_ahead(session, lease_seconds=lease_seconds)
    if not (queued or leased):
        return 0
    with database.write() as session:
        found = transitions.bring_forward(session)
    with database.write() as session:  # another one: who holds some jobs waits for no others
        shortened = transitions.shorten_leases(session, lease_seconds=lease_seconds)
    if found or shortened:
        log.warning("clock.put_back jobs_brought_forward=%d leases_shortened=%d", found, shortened)
    return found + shortened
