"""All loops, each in its period."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from service.audit.service import link
from service.db import Database
from service.dispatch.dispatcher import Dispatcher
from service.estimates.service import refresh
from service.settings import Settings
from service.storage import FileStore
from worker.lease import DATABASE_AWAY
from worker.reconcile.attesting import Attester
from worker.reconcile.clocks import bring_forward
from worker.reconcile.deadlines import expire_deadlines
from worker.reconcile.leases import LeaseKeeper
from worker.reconcile.schedules import ScheduleKeeper
from worker.upkeep.collector import Collector
from worker.upkeep.registry import ROUND_ITEMS, collectors

log = logging.getLogger(__name__)

# Polls of the stop flag, so that a stop does not wait for the period.
TICK_SECONDS = 0.1
# What jobs took is learned from so often, where any has ended.
LEARN_SECONDS = 30.0


@dataclass(frozen=True)
class Loop:
    """One loop: its name, the seconds between its rounds, and the round, which returns how much it did."""

    name: str
    period_seconds: float
    round: Callable[[], int]


class Reconciler:
    """The loops over one database and store; a method does one round of its loop and says how much it did.

    Args:
        settings: places and periods.
        database: where jobs are.
        store: where files are.
        dispatcher: is woken where schedules submit jobs; None: workers look for themselves.
        is_new: see ``LeaseKeeper``; who does a single round must not spare leases in it.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: FileStore,
        dispatcher: Dispatcher | None,
        *,
        is_new: bool = True,
    ) -> None:
        self._settings = settings
        self._database = database
        self._leases = LeaseKeeper(database, lease_seconds=settings.lease_seconds, is_new=is_new)
        self._schedules = ScheduleKeeper(settings, database, store, dispatcher)
        self._attester = Attester(settings, database)
        self.loops = (
            Loop("expire_leases", settings.reconcile_seconds, self.expire_leases),
            Loop("expire_deadlines", settings.reconcile_seconds, self.expire_deadlines),
            Loop("bring_forward", settings.reconcile_seconds, self.bring_forward),
            Loop("fire_schedules", settings.reconcile_seconds, self._schedules.fire),
            Loop("settle_schedules", settings.reconcile_seconds, self._schedules.settle),
            Loop("attest", settings.reconcile_seconds, self.attest),
            Loop("link_audit", settings.reconcile_seconds, self.link_audit),
            Loop("learn_timings", max(settings.reconcile_seconds, LEARN_SECONDS), self.learn_timings),
            *(_collecting(found) for found in collectors(settings, database, store)),
        )

    def expire_leases(self) -> int:
        """See ``leases``."""
        return self._leases.expire()

    def expire_deadlines(self) -> int:
        """See ``deadlines``."""
        return expire_deadlines(self._database, is_behind=self._leases.is_behind)

    def bring_forward(self) -> int:
        """See ``clocks``."""
        return bring_forward(self._database, lease_seconds=self._settings.lease_seconds)

    def learn_timings(self) -> int:
        """See ``service.estimates``."""
        return refresh(self._database)

    def link_audit(self) -> int:
        """See ``service.audit``."""
        return link(self._database)

    def attest(self) -> int:
        """See ``attesting``."""
        return self._attester.attest()


def _collecting(found: Collector) -> Loop:
    """The loop of a collector; see ``worker.upkeep.registry``."""
    collect = found.collect
    return Loop(
        f"collect_{found.name}", found.period_seconds, lambda: 0 if collect is None else collect(ROUND_ITEMS).items
    )


def run_once(reconciler: Reconciler) -> dict[str, int]:
    """One round of every loop; returns what each did. An error ends it."""
    return {loop.name: loop.round() for loop in reconciler.loops}


def run_forever(reconciler: Reconciler, stopping: Callable[[], bool]) -> None:
    """Rounds of every loop, each in its period, until ``stopping``.

    One loop's trouble must not starve the others: it is logged, and the loop has its next round in time.
    """
    due_at = dict.fromkeys((loop.name for loop in reconciler.loops), 0.0)
    while not stopping():
        for loop in reconciler.loops:
            now = time.monotonic()
            if now < due_at[loop.name] or stopping():
                continue
            due_at[loop.name] = now + loop.period_seconds
            _round(loop)
        time.sleep(TICK_SECONDS)


def _round(loop: Loop) -> None:
    try:
        done = loop.round()
    except DATABASE_AWAY as error:
        log.warning("reconcile.database_away loop=%s: %s", loop.name, error)
    except Exception:  # a fault in one loop must not stop the others; it is logged whole, and the loop tries again
        log.exception("reconcile.failed loop=%s", loop.name)
    else:
        if done:
            log.info("reconcile.done loop=%s count=%d", loop.name, done)
