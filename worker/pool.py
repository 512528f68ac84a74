"""A worker without a broker: releases jobs for its own slots, and runs them in its own threads."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session

from service.dispatch.dispatcher import Dispatcher
from service.dispatch.release import Released
from service.dispatch.repository import started
from service.dispatch.slots import Crew, FreeSlots, Started
from service.jobs.errors import DispatchError
from service.notifier import ChangeFeed
from service.settings import Settings
from worker.embedded import StopFlag
from worker.node import Node

log = logging.getLogger(__name__)

# Between two looks for jobs that may start by now; others are looked for as soon as they are there.
LOOK_SECONDS = 0.5
_STOP_SECONDS = 0.1


class Pool:
    """Threads that run jobs, one for each slot; a carrier of the dispatcher.

    Args:
        node: this process.
    """

    def __init__(self, node: Node) -> None:
        self.dispatcher = Dispatcher(
            node.database,
            self,
            node.settings.quota,
            lost_seconds=node.settings.redispatch_seconds,
            period_seconds=LOOK_SECONDS,
        )
        self._node = node
        self._threads = ThreadPoolExecutor(node.slots.count, thread_name_prefix="slot")
        self._lock = threading.Lock()
        self._jobs: dict[str, Released] = {}

    def free(self, session: Session) -> FreeSlots:
        """Slots of this process alone: others release for theirs."""
        with self._lock:
            mine = list(self._jobs.values())
        slots = self._node.slots.count
        queues = frozenset(queue for queue, count in self._node.offers().items() if count)
        crew = Crew(queues, slots - len(mine), slots, self._node.short_slots)
        running = [Started(job.queue, job.tenant_id, job.size_class, 1) for job in mine]
        _, waiting = started(session)
        return FreeSlots([crew], running, waiting)

    def send(self, job: Released) -> None:
        """Run the job in a thread.

        Raises:
            DispatchError: this process may have no more threads.
        """
        with self._lock:
            self._jobs[job.id] = job
        try:
            self._threads.submit(self._run, job)
        except RuntimeError as error:
            self._forget(job)
            raise DispatchError(
                f"No thread could be started: {error}", hint="Raise the process limit of this user."
            ) from error

    def ping(self) -> None:
        """There is nothing to reach."""

    def close(self) -> None:
        """Wait for the jobs that run, which a worker that stops puts back."""
        self._threads.shutdown(wait=True)

    def _run(self, job: Released) -> None:
        try:
            self._node.run(job.id, job.attempt)
        except Exception:  # no job may end the thread; its lease runs out, and another attempt is made
            log.exception("job.fault job_id=%s attempt=%d", job.id, job.attempt)
        finally:
            self._forget(job)
            self.dispatcher.wake()

    def _forget(self, job: Released) -> None:
        with self._lock:
            self._jobs.pop(job.id, None)


def run_pool(settings: Settings, queues: tuple[str, ...], devices: tuple[str, ...]) -> int:
    """Run jobs until SIGTERM or SIGINT; returns the exit code."""
    stop = StopFlag()
    stop.install()
    node = Node(settings, lambda: queues, devices, stopping=stop)
    pool = Pool(node)
    try:
        with ChangeFeed(node.database).subscribe(pool.dispatcher.heard):
            log.info("worker %s ready.", node.id)  # in the words of Celery's workers
            while not stop():
                time.sleep(_STOP_SECONDS)
    finally:
        pool.dispatcher.close()
        node.close()
    return 0
