"""Setup of the worker process and of the reconciler process."""

from __future__ import annotations

from contextlib import ExitStack, closing

from service.db import Database
from service.dispatch.dispatcher import open_dispatcher
from service.monitoring.collectors import LOOK_TIMEOUTS, registry_of
from service.monitoring.serving import serving
from service.notifier import ChangeFeed
from service.process import hide_process
from service.schema import require_migrated
from service.settings import Settings
from service.storage.opening import open_store
from service.tracing import exporting
from worker.embedded import StopFlag
from worker.node import refuse_unknown
from worker.pool import run_pool
from worker.reconcile.loops import OUTBOXES, make_loops, run_forever, run_once, send_once, sending
from worker.upkeep.scrub import scrubbing


def run_worker_process(settings: Settings, queues: tuple[str, ...], devices: tuple[str, ...] = ()) -> int:
    """Take jobs from ``queues`` until asked to stop; returns the exit code.

    Args:
        settings: say among others how many slots there are.
        queues: names.
        devices: GPUs that are dealt out to the slots; none: their jobs see those of this process.

    Raises:
        InvalidSettingsError: there is no such queue, or there are fewer devices than slots.
        SandboxIncompleteError: its runners are to have all controls, and one of them is not here.
    """
    refuse_unknown(queues)
    if not settings.broker_url:
        return run_pool(settings, queues, devices)
    from worker.celery_app import run_worker  # Celery takes long to import

    return run_worker(settings, queues, devices)


def run_reconciler_process(settings: Settings, *, once: bool) -> dict[str, int] | None:
    """Keep the loops going until asked to stop; with ``once`` do one round and say what it did."""
    stop = StopFlag()
    if not once:
        stop.install()
        hide_process()
    settings.make_folders()
    database = Database(settings.database_url)
    require_migrated(database, settings.schema_wait_seconds)
    dispatcher = open_dispatcher(settings, database, period_seconds=settings.reconcile_seconds)
    store = open_store(settings)
    loops = make_loops(settings, database, store, dispatcher, is_new=not once)
    try:
        if once:
            done = run_once(loops) | {"dispatch": 0 if dispatcher is None else dispatcher.round()}
            return done | {outbox: send_once(outbox, settings, database, store) for outbox in OUTBOXES}
        with exporting("reconciler"), scrubbing(settings, database, store), ExitStack() as stack:
            looked_at = stack.enter_context(closing(Database(settings.database_url, timeouts=LOOK_TIMEOUTS)))
            stack.enter_context(serving(settings, registry_of(settings, "reconciler", looked_at)))
            if dispatcher is not None:
                stack.enter_context(ChangeFeed(database).subscribe(dispatcher.heard))
            for outbox in OUTBOXES:
                stack.enter_context(sending(outbox, settings, database, store))
            run_forever(loops, stop)
        return None
    finally:
        if dispatcher is not None:
            dispatcher.close()
        database.close()
