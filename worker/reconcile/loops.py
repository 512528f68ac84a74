"""All loops with their periods; sending runs next to them, in one thread per outbox."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from service.attestations import repository as attestations
from service.attestations.schemas import SigningKeyUnreadableError, SigningUnavailableError
from service.audit.service import link
from service.db import Database, one_by_one
from service.dispatch.dispatcher import Dispatcher
from service.estimates import service as estimates
from service.hand_overs import repository as hand_overs
from service.monitoring.declarations import ROUND_FAILURES, ROUND_PERIOD, ROUND_SUCCESS, ROUNDS
from service.schedules import repository as schedules
from service.settings import Settings
from service.storage import Store
from service.webhooks import repository as webhooks
from worker.lease import DATABASE_AWAY
from worker.reconcile.leases import LeaseKeeper, bring_forward, expire_deadlines
from worker.upkeep.collector import Collector
from worker.upkeep.registry import ROUND_ITEMS, collectors

if TYPE_CHECKING:
    from service.deps import AppState
    from worker.reconcile.sending import OutboxSender
log = logging.getLogger(__name__)
# Polls of the stop flag, so that a stop does not wait for the period.
TICK_SECONDS = 0.1
# What jobs took is looked through so often for what is old.
FORGET_SECONDS = 600.0
# Of one round: the other loops wait for its end.
MOST_SCHEDULES, MOST_ATTESTATIONS = 200, 50


@dataclass(frozen=True)
class Loop:
    """One loop: its name, the seconds between its rounds, and the round, which returns how much it did.

    A round that did ``most`` is followed by the next one as soon as all other loops had their turn: there is more.
    """

    name: str
    period_seconds: float
    round: Callable[[], int]
    most: int | None = None


def make_loops(
    settings: Settings, database: Database, store: Store, dispatcher: Dispatcher | None, *, is_new: bool = True
) -> tuple[Loop, ...]:
    """The loops over one database and store.

    The dispatcher is woken where schedules submit jobs; None: workers look for themselves. For ``is_new`` see
    ``LeaseKeeper``; who does a single round must not spare leases in it.
    """
    quick = settings.reconcile_seconds
    leases = LeaseKeeper(database, lease_seconds=settings.lease_seconds, is_new=is_new)

    @cache
    def app() -> AppState:
        from service.deps import AppState

        return AppState.over(settings, database, store, dispatcher)

    return (
        Loop("expire_leases", quick, leases.expire),
        Loop("expire_deadlines", quick, lambda: expire_deadlines(database, is_behind=leases.is_behind)),
        Loop("bring_forward", quick, lambda: bring_forward(database, lease_seconds=settings.lease_seconds)),
        Loop("fire_schedules", quick, lambda: _fire(database, app)),
        Loop("settle_schedules", quick, lambda: _settle(database, app)),
        Loop("attest", quick, Attester(settings, database).attest),
        Loop("link_audit", quick, lambda: link(database)),
        Loop("forget_timings", max(quick, FORGET_SECONDS), lambda: estimates.forget(database)),
        *(_collecting(found) for found in collectors(settings, database, store)),
    )


def _collecting(found: Collector) -> Loop:
    """The loop of a collector; see ``worker.upkeep.registry``."""
    collect = found.collect
    return Loop(
        f"collect_{found.name}",
        found.period_seconds,
        lambda: 0 if collect is None else collect(ROUND_ITEMS).items,
        most=ROUND_ITEMS,
    )


def run_once(loops: Sequence[Loop]) -> dict[str, int]:
    """One round of every loop; returns what each did. An error ends it."""
    return {loop.name: loop.round() for loop in loops}


def run_forever(loops: Sequence[Loop], stopping: Callable[[], bool]) -> None:
    """Rounds of every loop, each in its period, until ``stopping``.

    One loop's trouble must not starve the others: it is logged, and the loop has its next round in time.
    """
    due_at = dict.fromkeys((loop.name for loop in loops), 0.0)
    for loop in loops:
        _show(loop.name, loop.period_seconds)
    while not stopping():
        for loop in loops:
            now = time.monotonic()
            if now < due_at[loop.name] or stopping():
                continue
            due_at[loop.name] = now + loop.period_seconds
            if done := attempted(loop.name, loop.round):
                log.info("reconcile.done loop=%s count=%d", loop.name, done)
                if loop.most is not None and done >= loop.most:
                    due_at[loop.name] = 0.0
        time.sleep(TICK_SECONDS)


def _show(name: str, period_seconds: float) -> None:
    """Have the loop among the metrics before its first round, which may fail."""
    ROUND_PERIOD.labels(name).set(period_seconds)
    ROUND_SUCCESS.labels(name)
    ROUND_FAILURES.labels(name)


def attempted(name: str, work: Callable[[], int]) -> int:
    """What a round of the loop did; 0, and a line in the log, where it met with trouble."""
    begun = time.monotonic()
    try:
        done = work()
    except DATABASE_AWAY as error:
        log.warning("reconcile.database_away loop=%s: %s", name, error)
    except Exception:  # a fault in one loop must not stop the others; it is logged whole, and the loop tries again
        log.exception("reconcile.failed loop=%s", name)
    else:
        ROUND_SUCCESS.labels(name).set_to_current_time()
        return done
    finally:
        ROUNDS.labels(name).observe(time.monotonic() - begun)
    ROUND_FAILURES.labels(name).inc()
    return 0


class Attester:
    """Signs what jobs have made soon after their success: the API server has only to send it then. It signs in the name
    of the installation, where that has a key.

    Args:
        settings: have the pepper.
        database: where jobs are.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._told = ""

    def attest(self) -> int:
        """Sign what is not signed yet, those that wait longest first; returns how many. Says once why it cannot."""
        with self._database.read() as session:
            due = attestations.unattested_jobs(session, MOST_ATTESTATIONS)
        if not due:
            return 0
        # cryptography: reconcilers with nothing to sign do without
        from service.attestations.signing import attest, signing_key

        try:
            signing_key(self._database, self._settings)
        except (SigningUnavailableError, SigningKeyUnreadableError) as error:
            if self._told != error.detail:
                log.warning("attestations.not_signed: %s %s", error.detail, error.hint)
                self._told = error.detail
            return 0
        self._told = ""
        return one_by_one("attestation", due, lambda job: attest(self._database, self._settings, *job) is not None)


def _fire(database: Database, open_app: Callable[[], AppState]) -> int:
    """Deal with schedules that are due, and with runs that waited for the one before; returns how many.

    What that needs is loaded once there is something to do: most installations have no schedules.
    """
    with database.read() as session:
        if not (schedules.due(session, 1) or schedules.planned_ahead(session, 1) or schedules.waiting(session, 1)):
            return 0
    from service.schedules import firing

    app = open_app()
    done = firing.bring_forward(app, MOST_SCHEDULES) + firing.submit_waiting(app, MOST_SCHEDULES)
    return done + firing.fire_due(app, MOST_SCHEDULES)


def _settle(database: Database, open_app: Callable[[], AppState]) -> int:
    """Judge runs of schedules whose jobs have ended; returns how many."""
    with database.read() as session:
        if not schedules.ended(session, 1):
            return 0
    from service.schedules import settling

    return settling.settle_ended(open_app(), MOST_SCHEDULES)


# What is sent beside the loops, by a thread for each outbox: a receiver that is slow holds up none of them.

# By the name of its loop: whether there is anything to send, a look that writes nothing.
OUTBOXES: dict[str, Callable[[Session], bool]] = {
    "deliver_webhooks": webhooks.OUTBOX.any_due,
    "hand_over": hand_overs.OUTBOX.any_due,
}


def _is_due(outbox: str, database: Database) -> bool:
    with database.read() as session:
        return OUTBOXES[outbox](session)


def _opened(
    outbox: str, settings: Settings, database: Database, store: Store, on_end: Callable[[], None]
) -> OutboxSender[Any] | None:
    """Who sends; calls ``on_end`` whenever it has room for more. None where this process cannot decrypt: what is due
    waits for one that can.
    """
    # cryptography and a client of HTTP: most installations send nothing
    from worker.reconcile.hand_overs import HandOverSender
    from worker.reconcile.sending import WebhookSender

    senders: dict[str, type[OutboxSender[Any]]] = {"deliver_webhooks": WebhookSender, "hand_over": HandOverSender}
    sender = senders[outbox]
    try:
        return sender(settings, database, store, on_end=on_end)
    except sender.vault.unavailable as error:
        log.warning("%ss.not_sent: %s %s", sender.name, error.detail, error.hint)
        return None


@contextmanager
def sending(outbox: str, settings: Settings, database: Database, store: Store) -> Iterator[None]:
    """Send what an outbox holds, in the background, while the block runs. What is under way at its end is waited for,
    or left to another process where it would last.
    """
    stopping, wake = Event(), Event()
    sender: OutboxSender[Any] | None = None

    def send() -> int:
        nonlocal sender
        if not _is_due(outbox, database):
            return 0
        sender = sender or _opened(outbox, settings, database, store, wake.set)
        return 0 if sender is None else sender.round()

    def run() -> None:
        while not stopping.is_set():
            wake.clear()
            attempted(outbox, send)
            wake.wait(settings.reconcile_seconds)  # an end makes room for the next

    _show(outbox, settings.reconcile_seconds)
    thread = Thread(target=run, name=outbox, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        wake.set()
        thread.join()
        if sender is not None:
            sender.interrupt()
            sender.close()


def send_once(outbox: str, settings: Settings, database: Database, store: Store) -> int:
    """Send what is due, as much as goes at once, and wait for the end; returns how much."""
    due = _is_due(outbox, database)
    sender = _opened(outbox, settings, database, store, lambda: None) if due else None
    if sender is None:
        return 0
    with closing(sender):
        return sender.round()
