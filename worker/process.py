"""The worker process and the reconciler process: what they are made of."""

from __future__ import annotations

import logging

from service.contracts.command_errors import InvalidSettingsError
from service.db import Database
from service.jobs.dispatch import Dispatcher
from service.jobs.queues import QUEUES
from service.settings import Settings
from service.storage import FileStore
from worker.broker import QueueDepths
from worker.celery_app import make_app, run_worker, stopping
from worker.embedded import StopFlag
from worker.reconciler import Reconciler, collect_scratch, run_forever, run_once
from worker.supervisor import Supervisor
from worker.tasks import register


def run_worker_process(settings: Settings, queues: tuple[str, ...]) -> int:
    """Take jobs from ``queues`` until asked to stop; returns the exit code.

    Raises:
        InvalidSettingsError: there is no such queue.
    """
    unknown = [name for name in queues if name not in QUEUES]
    if unknown:
        raise InvalidSettingsError(f"There is no queue {unknown[0]!r}.", hint=f"The queues are: {', '.join(QUEUES)}.")
    settings.make_folders()
    database = Database(settings.database_url)
    app = make_app(settings)
    # What a killed predecessor left on this host; no reconciler may have this disk.
    collect_scratch(settings, database)
    supervisor = Supervisor(settings, database, FileStore(settings.storage_dir), stopping=stopping)
    register(app, supervisor, queues, stopping)
    try:
        return run_worker(app, settings, queues=queues, level=logging.INFO)
    finally:
        database.close()


def run_reconciler_process(settings: Settings, *, once: bool) -> dict[str, int] | None:
    """Keep the loops going until asked to stop; with ``once`` do one round and say what it did."""
    settings.make_folders()
    database = Database(settings.database_url)
    dispatcher = Dispatcher(settings)
    reconciler = Reconciler(settings, database, FileStore(settings.storage_dir), dispatcher, QueueDepths(settings))
    try:
        if once:
            return run_once(reconciler)
        stop = StopFlag()
        stop.install()
        run_forever(reconciler, stop)
        return None
    finally:
        dispatcher.close()
        database.close()
