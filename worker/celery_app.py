"""The Celery application of a worker process. Threads, not forks: the process only supervises, runners do the work."""

from __future__ import annotations

import logging
import tempfile
import threading
import warnings

from celery import Celery, signals
from celery.exceptions import SecurityWarning

from service.jobs.dispatch import celery_settings
from service.settings import Settings
from worker.transport import worker_transport

log = logging.getLogger(__name__)

# Set once the process was asked to stop; running jobs are then put back into the queue.
_stopping = threading.Event()


def stopping() -> bool:
    """True once the worker shuts down."""
    return _stopping.is_set()


def make_app(settings: Settings) -> Celery:
    """The application with the settings that senders and workers share."""
    app = Celery("quantmill-worker", set_as_current=True)
    app.conf.update(celery_settings(settings))
    app.conf.update(worker_transport(settings))
    app.conf.update(worker_pool="threads", worker_concurrency=settings.worker_slots)
    return app


def run_worker(app: Celery, settings: Settings, *, queues: tuple[str, ...], level: int) -> int:
    """Consume ``queues`` until SIGTERM or SIGINT; returns the exit code."""
    if settings.embedded_broker:
        # Messages are taken by moving their file into the temporary folder; only within one filesystem is that atomic.
        tempfile.tempdir = str(settings.broker_dir / "processed")
    # Celery warns of root because of pickled messages; ours are JSON, and a forged one can do no more than name a job.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.worker_shutting_down.connect(_on_shutdown, weak=False)
    logging.getLogger("celery.app.trace").addFilter(_is_no_rejection)
    worker = app.Worker(
        queues=list(queues),
        loglevel=level,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    worker.start()
    # Celery calls a stop by SIGINT a failure; it was asked for.
    return 0 if stopping() else int(worker.exitcode or 0)


def _is_no_rejection(record: logging.LogRecord) -> bool:
    """False for what Celery says, with a traceback, of a message that was given back as it should be."""
    return getattr(record, "data", {}).get("description") != "rejected"


def _on_shutdown(**_: object) -> None:
    _stopping.set()
