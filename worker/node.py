"""A worker process: its slots, what it tells of itself, and how a released job gets from a message to a supervisor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from itertools import zip_longest

from service.contracts.command_errors import InvalidSettingsError
from service.db import Database
from service.jobs.queues import GPU_QUEUE, QUEUES, queue_of
from service.process import forget_variables, hide_process
from service.schema import require_migrated
from service.settings import Settings
from service.storage import FileStore
from worker.backoff import QueueBackoff
from worker.confinement.controls import Found
from worker.heartbeat import Heartbeat
from worker.lease import DATABASE_AWAY
from worker.memory import as_one_job, has_room_for_spares, job_memory_bytes
from worker.outcome import Outcome
from worker.slots import Slots, kept_slots, shares
from worker.spares import Spares
from worker.supervisor import Supervisor, new_worker_id
from worker.upkeep.garbage import collect_scratch

log = logging.getLogger(__name__)

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
        self._closing.callback(self.database.close)
        require_migrated(self.database, settings.schema_wait_seconds)
        # What a killed predecessor left on this host; no reconciler may have this disk.
        collect_scratch(settings, self.database)
        store = FileStore(settings.storage_dir)
        most = 0 if not keep else _INSPECTION_SPARES if inspects else len(parts)
        spares = [Spares(part.sandbox(), settings) for part in parts[:most]]
        for kept in spares:
            self._closing.callback(kept.close)
        self.slots = Slots(
            [
                Supervisor(
                    settings,
                    self.database,
                    store,
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


def refuse_unknown(queues: Collection[str]) -> None:
    """Raise unless there are such queues.

    Raises:
        InvalidSettingsError: names the first that there is not.
    """
    unknown = [name for name in queues if name not in QUEUES]
    if unknown:
        raise InvalidSettingsError(f"There is no queue {unknown[0]!r}.", hint=f"The queues are: {', '.join(QUEUES)}.")
