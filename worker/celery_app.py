"""The Celery application: ``celery -A worker.celery_app worker -Q cpu -c 2``, or ``quantmill worker``.

Every task is one attempt of one job. Its id names both, and its claim in the database decides: a message that is late,
doubled or forged finds nothing to claim and ends. The pool is of threads, which only supervise: runners do the work.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from celery import Celery, signals
from celery.app.task import Task
from celery.concurrency import get_implementation
from celery.exceptions import Retry as TaskRetry
from celery.exceptions import SecurityWarning
from celery.utils.nodenames import gethostname, nodename
from celery.worker import control

from service.contracts.command_errors import InvalidSettingsError
from service.contracts.errors import QuantmillError
from service.db import Database
from service.dispatch.broker import TASK_OF_KIND, celery_settings, job_of_task, on_redis
from service.dispatch.dispatcher import Dispatcher, open_dispatcher
from service.jobs import transitions
from service.logs import LogFormat, configure_logging
from service.settings import Settings
from worker.lease import DATABASE_AWAY
from worker.node import Node
from worker.outcome import Canceled, Failed, Fenced, Outcome, Succeeded
from worker.repository import tenant_of_attempt
from worker.watchdog import Watchdog

log = logging.getLogger(__name__)

EXIT_SETTINGS = 78  # EX_CONFIG of sysexits.h


class JobFailedError(Exception):
    """The job has failed; its row and its events say why."""


class CeleryWorker:
    """What Celery's signals make and end: the node of this process, beside it a dispatcher and a watchdog.

    Args:
        settings: as the environment says.
        devices: GPUs that are dealt out to the slots.
    """

    def __init__(self, settings: Settings, devices: tuple[str, ...] = ()) -> None:
        self.settings = settings
        self._devices = devices
        self._stopping = threading.Event()
        self._consumer: Any = None
        self._queues: tuple[str, ...] = ()
        self.node: Node | None = None
        self._dispatcher: Dispatcher | None = None
        self._watchdog: Watchdog | None = None

    def stopping(self) -> bool:
        """True once the process was asked to stop; running jobs are then put back into the queue."""
        return self._stopping.is_set()

    def connect(self) -> None:
        """Have Celery call this one."""
        signals.worker_init.connect(self._on_init, weak=False)
        signals.worker_ready.connect(self._on_ready, weak=False)
        signals.worker_shutting_down.connect(self._on_shutting_down, weak=False)
        signals.worker_shutdown.connect(self._on_shutdown, weak=False)
        signals.task_revoked.connect(self._on_revoked, weak=False)

    def perform(self, task: Task, job_id: str) -> str:
        """One task: one attempt of a job; returns how it ended, for whoever looks at the task.

        Raises:
            JobFailedError: the job has failed.
            TaskRetry: it is queued again.
        """
        named = job_of_task(task.request.id or "")
        if self._watchdog is not None:
            self._watchdog.heard()
        if self.node is None or named is None or named[0] != job_id:
            log.warning("task.foreign id=%r", task.request.id)
            return "no task of ours"
        outcome = self.node.run(*named)
        if self._dispatcher is not None and outcome is not None:
            self._dispatcher.wake()
        return _words(outcome, task)

    def cancel(self, task_ids: list[str]) -> None:
        """Cancel the jobs of tasks that were revoked."""
        if self.node is not None:
            try:
                cancel_revoked(self.node.database, task_ids)
            except DATABASE_AWAY as error:
                log.warning("task.not_revoked ids=%s: the database is away: %s", ",".join(task_ids), error)

    def _on_init(self, sender: Any, **_: Any) -> None:
        try:
            if get_implementation(sender.pool_cls) is not get_implementation("threads"):
                name = getattr(sender.pool_cls, "__module__", sender.pool_cls)
                raise InvalidSettingsError(f"The pool {name} cannot run jobs.", hint="Omit -P: the pool uses threads.")
            self._queues = tuple(sender.app.amqp.queues.consume_from)
            settings = self.settings.model_copy(update={"worker_slots": int(sender.concurrency)})
            self.node = Node(settings, self._consumed, self._devices, stopping=self.stopping, name=sender.hostname)
        except QuantmillError as error:
            log.error("worker.not_started code=%s: %s %s", error.code, error.detail, error.hint or "")  # noqa: TRY400
            os._exit(EXIT_SETTINGS)  # Celery goes on after an exception here
        self._dispatcher = open_dispatcher(self.settings, self.node.database)
        self._watchdog = Watchdog(self.node, deaf_seconds=self.settings.deaf_seconds)

    def _on_ready(self, sender: Any, **_: Any) -> None:
        self._consumer = sender
        if self._watchdog is not None:
            self._watchdog.start()
        if self._dispatcher is not None:
            self._dispatcher.wake()

    def _on_shutting_down(self, **_: Any) -> None:
        self._stopping.set()

    def _on_shutdown(self, **_: Any) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        if self._dispatcher is not None:
            self._dispatcher.close()
        if self.node is not None:
            self.node.close()

    def _on_revoked(self, request: Any, expired: bool, **_: Any) -> None:
        if not expired:
            self.cancel([request.id])

    def _consumed(self) -> tuple[str, ...]:
        """Queues that messages are taken from now: ``control cancel_consumer`` and ``add_consumer`` change them."""
        consumer = self._consumer and self._consumer.task_consumer
        return self._queues if not consumer else tuple(queue.name for queue in consumer.queues)


def make_app(settings: Settings, devices: tuple[str, ...] = ()) -> Celery:
    """The application of a worker.

    Args:
        settings: name the broker and the database.
        devices: GPUs that are dealt out to the slots.

    Raises:
        InvalidSettingsError: there is no broker.
    """
    if not settings.broker_url:
        raise InvalidSettingsError(
            "No broker for Celery is configured.",
            hint="Set QUANTMILL_BROKER_URL; without a broker, start `quantmill worker`, which polls the database.",
        )
    app = Celery("quantmill", set_as_current=True)
    app.conf.update(celery_settings(settings))
    app.conf.update(worker_pool="threads", worker_concurrency=settings.worker_slots)
    if on_redis(settings):
        app.conf.update(broker_transport="worker.redis_transport:Transport")
    worker = CeleryWorker(settings, devices)
    worker.connect()
    for name in sorted(set(TASK_OF_KIND.values())):
        _register(app, name, worker)
    _replace_revoke(worker)
    return app


def run_worker(settings: Settings, queues: tuple[str, ...], devices: tuple[str, ...]) -> int:
    """Consume ``queues`` until SIGTERM or SIGINT; returns the exit code."""
    app = make_app(settings, devices)
    # Celery warns of root because of pickled messages; ours are JSON, and a forged one can do no more than name a job.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = app.Worker(
        queues=list(queues),
        loglevel=logging.INFO,
        quiet=True,
        hostname=nodename(f"{'-'.join(queues)}-{os.getpid()}", gethostname()),
        # What workers would tell each other, and wait a second for as they start, the database knows.
        without_mingle=True,
        without_gossip=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _register(app: Celery, name: str, worker: CeleryWorker) -> None:
    def run(self: Task, job_id: str) -> str:
        return worker.perform(self, job_id)

    run.__doc__ = f"One attempt of a job: {name}."
    app.task(name=name, bind=True, throws=(JobFailedError,), ignore_result=True)(run)


def _words(outcome: Outcome | None, task: Task) -> str:
    if outcome is None:
        return "not claimed"
    if isinstance(outcome, Failed):
        raise JobFailedError(f"{outcome.problem.code}: {outcome.problem.detail}")
    if isinstance(outcome, Succeeded | Canceled | Fenced):
        return type(outcome).__name__.lower()
    raise TaskRetry(getattr(outcome, "reason", None) or "interrupted", sig=task.signature())


def _replace_revoke(worker: CeleryWorker) -> None:
    """``control revoke`` cancels the job, wherever it is; Celery by itself would only refuse its message."""

    def cancel(task_id: str | list[str]) -> list[str]:
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        # The database may let it wait, and this is the thread in which all messages arrive.
        threading.Thread(target=worker.cancel, args=(ids,), name="revoke", daemon=True).start()
        return ids

    @control.control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
    def revoke(state: Any, task_id: str | list[str], **_: Any) -> Any:
        """Cancel the jobs of these tasks (or list of ids)."""
        return control.revoke(state, cancel(task_id))

    @control.control_command(
        name="terminate", variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]"
    )
    def terminate(state: Any, signal: str, task_id: str | list[str], **_: Any) -> Any:
        """Cancel the jobs of these tasks: as revoke, since runners are asked to stop before they are killed."""
        return control.revoke(state, cancel(task_id))


def __getattr__(name: str) -> Celery:
    """``app``, made once it is asked for: ``celery -A worker.celery_app``."""
    if name != "app":
        raise AttributeError(name)
    settings = Settings()
    if settings.log_format == "json":  # as text, Celery logs as its own options say
        signals.setup_logging.connect(partial(_log_as_json, form=settings.log_format), weak=False)
    app = make_app(settings)
    globals()["app"] = app
    return app


def _log_as_json(loglevel: int, form: LogFormat, **_: Any) -> None:
    configure_logging(loglevel, form)


def cancel_revoked(database: Database, task_ids: Sequence[str]) -> list[str]:
    """Cancel the jobs of these tasks; returns the ids of those for which it was asked.

    A task is one attempt: that of an attempt which is over says nothing of the next one. Every worker is told of a
    revocation; who comes second changes nothing.

    Args:
        database: where jobs are.
        task_ids: any.
    """
    named = [found for found in map(job_of_task, task_ids) if found is not None]
    canceled = []
    for job_id, attempt in sorted(named):
        with database.write() as session:
            tenant_id = tenant_of_attempt(session, job_id, attempt)
            if tenant_id is not None:
                transitions.request_cancel(session, tenant_id, job_id)
                canceled.append(job_id)
    if canceled:
        log.warning("task.revoked job_ids=%s", ",".join(canceled))
    return canceled
