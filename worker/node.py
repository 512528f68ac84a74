"""A worker process: its slots, its heartbeat, and passing released jobs to supervisors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from itertools import zip_longest
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from service.contracts.command_errors import InvalidSettingsError
from service.db import Database
from service.jobs.queues import GPU_QUEUE, QUEUES, queue_of
from service.monitoring.collectors import registry_of
from service.monitoring.serving import serving
from service.process import forget_variables, hide_process
from service.queues import repository
from service.schema import require_migrated
from service.settings import Settings
from service.settings.places import PROVIDER_SECRETS
from service.tracing import exporting
from worker.conclusion import QueueBackoff
from worker.confinement.controls import Found
from worker.lease import DATABASE_AWAY
from worker.memory import as_one_job, has_room_for_spares, job_memory_bytes
from worker.outcome import Outcome
from worker.slots import Slots, kept_slots, shares
from worker.spares import Spares
from worker.supervisor import Supervisor, new_worker_id
from worker.upkeep.garbage import collect_scratch

log = logging.getLogger(__name__)

# Between two looks whether there is news to tell before its time.
_LOOK_SECONDS = 0.5


class Heartbeat:
    """A thread that announces a worker in short transactions of its own; a context manager.

    Args:
        database: where workers are noted; while it is away nothing is, which is all that follows.
        worker_id: name of this process.
        offers: tells how many jobs it runs at a time, by queue that it takes jobs of.
        short_slots: of these, those that are kept for short jobs.
        period_seconds: between two announcements without news.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        offers: Callable[[], Mapping[str, int]],
        *,
        short_slots: int = 0,
        period_seconds: float = repository.ANNOUNCE_SECONDS,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._offers = offers
        self._short_slots = short_slots
        self._period = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._announce({})

    def _run(self) -> None:
        told: Mapping[str, int] | None = None
        due_at = 0.0
        while True:
            offers, now = self._offers(), time.monotonic()
            if offers != told or now >= due_at:
                told = offers if self._announce(offers, is_first=told is None) else None
                due_at = now + self._period
            if self._stop.wait(min(_LOOK_SECONDS, self._period)):
                return

    def _announce(self, offers: Mapping[str, int], *, is_first: bool = False) -> bool:
        try:
            with self._database.write() as session:
                repository.announce(session, self._worker_id, offers, short_slots=self._short_slots)
                if is_first:
                    repository.forget_gone(session)
        except DATABASE_AWAY as error:
            log.warning("heartbeat.database_away: %s", error)
        except SQLAlchemyError:  # such as a database that takes no writes for a while: the next beat may succeed
            log.exception("heartbeat.failed")
        else:
            return True
        return False


# Of a worker that only inspects: a model and its data come together, and of its slots the first are taken first.
_INSPECTION_SPARES = 2


class Node:
    """Runs released jobs in its slots, from any thread.

    Args:
        settings: say among others how many slots there are.
        queues: tells those that it takes jobs of now.
        devices: GPUs that are dealt out to the slots; none: their jobs see those of this process.
        stopping: True once the process shuts down.
        name: of the process, where it has one; it need not be unique.

    Raises:
        InvalidSettingsError: there are fewer devices than slots.
        SandboxIncompleteError: its runners are to have all controls, and one of them is not here.
    """

    def __init__(
        self,
        settings: Settings,
        queues: Callable[[], Collection[str]],
        devices: tuple[str, ...] = (),
        *,
        stopping: Callable[[], bool],
        name: str = "",
    ) -> None:
        first = set(queues())
        inspects = first == {queue_of("inspect_model")}
        if inspects:
            settings = as_one_job(settings)
        parts = shares(settings, devices)
        guard_secrets(settings)
        settings.make_folders()
        tell_controls(settings, parts[0].sandbox().controls())
        # Jobs that see GPUs could have none of them.
        keep = not devices and first != {GPU_QUEUE} and has_room_for_spares(settings)
        log.info("worker.share slots=%d job_memory_bytes=%d spares=%s", len(parts), job_memory_bytes(settings), keep)
        self.settings = settings
        self.id = new_worker_id(name)
        self.database = Database(settings.database_url)
        self._queues, self._stopping, self._queue_backoff = queues, stopping, QueueBackoff()
        self._closing = ExitStack()
        self._closing.enter_context(exporting("worker"))
        self._closing.callback(self.database.close)
        require_migrated(self.database, settings.schema_wait_seconds)
        # What a killed predecessor left on this host; no reconciler may have this disk.
        collect_scratch(settings, self.database)
        most = 0 if not keep else _INSPECTION_SPARES if inspects else len(parts)
        spares = [Spares(part.sandbox(), settings) for part in parts[:most]]
        for kept in spares:
            self._closing.callback(kept.close)
        self.slots = Slots(
            [
                Supervisor(
                    settings,
                    self.database,
                    sandbox=part.sandbox(),
                    spares=kept,
                    worker_id=self.id,
                    stopping=stopping,
                    queue_backoff=self._queue_backoff,
                )
                for part, kept in zip_longest(parts, spares)
            ]
        )
        self.short_slots = kept_slots(self.slots.count, settings.short_slots, devices)
        self._closing.enter_context(serving(settings, registry_of(settings, "worker")))
        heartbeat = Heartbeat(self.database, self.id, self.offers, short_slots=self.short_slots)
        self._closing.enter_context(heartbeat)

    def offers(self) -> Mapping[str, int]:
        """Jobs that it runs at a time, by queue: none of one in which this host failed just now, or once it stops."""
        queues = () if self._stopping() else self._queues()
        ready = self._queue_backoff.ready(queues)
        return {queue: self.slots.count if queue in ready else 0 for queue in queues}

    def run(self, job_id: str, attempt: int) -> Outcome | None:
        """See a job through one attempt, if it was released for it; None: it was not to be had."""
        with self.slots.taken() as supervisor:
            try:
                return supervisor.run(job_id, attempt)
            except DATABASE_AWAY as error:  # released once more, as one whose message got lost
                log.warning("job.not_claimed job_id=%s: the database is away: %s", job_id, error)
                return None

    def close(self) -> None:
        """Say that it is gone, and let go of the database."""
        self._closing.close()


def guard_secrets(settings: Settings) -> None:
    """Keep the keys and passwords of ``settings``, which have been read, from the runners of this process."""
    if settings.storage_url:
        from service.storage.objects import connections  # only where there is a bucket

        connections(settings.storage_url)
    forget_variables((*settings.secret_variables(), *PROVIDER_SECRETS))
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


def refuse_unknown(queues: Collection[str]) -> None:
    """Raise unless there are such queues.

    Raises:
        InvalidSettingsError: names the first that there is not.
    """
    unknown = [name for name in queues if name not in QUEUES]
    if unknown:
        raise InvalidSettingsError(
            f"Queue {unknown[0]!r} does not exist.", hint=f"Available queues: {', '.join(QUEUES)}."
        )
