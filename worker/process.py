"""The worker process and the reconciler process: what they are made of."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from service.contracts.command_errors import InvalidSettingsError
from service.db import Database
from service.jobs.dispatch import Dispatcher
from service.jobs.queues import QUEUES, queue_of
from service.schema import require_migrated
from service.secrecy import forget_variables, hide_process
from service.settings import Settings
from service.storage import FileStore
from worker.broker import QueueDepths
from worker.celery_app import make_app, run_worker, stopping
from worker.company import Company
from worker.confinement.controls import Found
from worker.deafness import Deafness
from worker.embedded import StopFlag
from worker.heartbeat import Heartbeat
from worker.memory import as_one_job, job_memory_bytes
from worker.reconcile.hand_overs import HAND_OVERS
from worker.reconcile.loops import Reconciler, run_forever, run_once
from worker.reconcile.outboxes import OutboxThread, send_once
from worker.reconcile.scratch import collect_scratch
from worker.reconcile.webhooks import WEBHOOKS
from worker.rest import Rest
from worker.slots import Slot, Slots, shares
from worker.supervisor import Supervisor, new_worker_id
from worker.tasks import Received, register
from worker.upkeep.scrub import ScrubThread

log = logging.getLogger(__name__)

# What a reconciler sends beside its loops.
OUTBOXES = (WEBHOOKS, HAND_OVERS)


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
    unknown = [name for name in queues if name not in QUEUES]
    if unknown:
        raise InvalidSettingsError(f"There is no queue {unknown[0]!r}.", hint=f"The queues are: {', '.join(QUEUES)}.")
    parts = shares(settings, devices)
    inspects = set(queues) == {queue_of("inspect_model")}
    if inspects:
        settings = as_one_job(settings)
    guard_secrets(settings)
    settings.make_folders()
    tell_controls(settings, parts[0].sandbox().controls())
    log.info("worker.share slots=%d job_memory_bytes=%d", len(parts), job_memory_bytes(settings))
    database = Database(settings.database_url)
    require_migrated(database, settings.schema_wait_seconds)
    app = make_app(settings)
    # What a killed predecessor left on this host; no reconciler may have this disk.
    collect_scratch(settings, database)
    worker_id = new_worker_id()
    store, rest = FileStore(settings.storage_dir), Rest()
    # Inspections are short, and somebody waits for each: one slot is kept for whoever has none running here.
    company = Company(len(parts) - 1 if inspects and len(parts) > 1 else None)
    parallel = [
        Slot(
            Supervisor(
                settings,
                database,
                store,
                sandbox=part.sandbox(),
                worker_id=worker_id,
                stopping=stopping,
                rest=rest,
                company=company,
            ),
            short_only=part.short_only,
        )
        for part in parts
    ]
    slots = Slots(
        parallel, database, queues, stopping=stopping, rest=rest, default_quota=settings.quota, company=company
    )
    received = Received()
    register(app, slots, stopping, received)
    deafness = Deafness(
        database,
        worker_id,
        queues,
        slots,
        received=received,
        depths=QueueDepths(settings),
        deaf_seconds=settings.deaf_seconds,
    )
    try:
        with Heartbeat(database, worker_id, queues, slots=len(parallel)), deafness:
            return run_worker(app, settings, queues=queues, level=logging.INFO)
    finally:
        database.close()


def guard_secrets(settings: Settings) -> None:
    """Keep the keys and passwords of ``settings``, which have been read, from the runners of this process."""
    forget_variables(settings.secret_variables())
    if not hide_process():
        log.warning("worker.not_hidden: other processes of this user may read this one's memory and environment")


def tell_controls(settings: Settings, found: Found) -> None:
    """Say once which controls hold the runners of this worker, and which do not.

    Raises:
        SandboxIncompleteError: all are to hold, and one of them is not here.
    """
    if settings.sandbox == "require":
        found.require()
    log.info("worker.sandbox mode=%s held=%s", settings.sandbox, ",".join(found.held) or "none")
    for name, why in found.missing.items():
        log.warning("worker.sandbox_missing control=%s: %s", name, why)


def run_reconciler_process(settings: Settings, *, once: bool) -> dict[str, int] | None:
    """Keep the loops going until asked to stop; with ``once`` do one round and say what it did."""
    stop = StopFlag()
    if not once:
        stop.install()
        hide_process()
    settings.make_folders()
    database = Database(settings.database_url)
    require_migrated(database, settings.schema_wait_seconds)
    dispatcher = Dispatcher(settings)
    store = FileStore(settings.storage_dir)
    reconciler = Reconciler(settings, database, store, dispatcher, QueueDepths(settings), is_new=not once)
    try:
        if once:
            done = run_once(reconciler)
            return done | {outbox.name: send_once(outbox, settings, database, store) for outbox in OUTBOXES}
        with ScrubThread(settings, database, store), ExitStack() as stack:
            for outbox in OUTBOXES:
                stack.enter_context(OutboxThread(outbox, settings, database, store))
            run_forever(reconciler, stop)
        return None
    finally:
        reconciler.close()
        dispatcher.close()
        database.close()
