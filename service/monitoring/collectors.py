"""What is looked up at a scrape: the installation's figures from the database, free disks, and what runs."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from service.contracts.base import VERSION
from service.contracts.quota import Quota
from service.db import Database
from service.hand_overs.repository import OUTBOX as HAND_OVERS
from service.monitoring import declarations as declared
from service.monitoring.declarations import COUNTED, DECLARED, Declared, Process
from service.queues.figures import figures
from service.queues.schemas import QueueOut
from service.repository import Outbox
from service.settings import Settings
from service.timeouts import DatabaseTimeouts
from service.webhooks.repository import OUTBOX as WEBHOOKS

log = logging.getLogger(__name__)
# What was found a moment ago is told again: several may scrape.
FRESH_SECONDS = 5.0
# Of a database that is asked for figures alone: a scrape waits no longer, whatever the process itself would do.
LOOK_TIMEOUTS = DatabaseTimeouts(
    lock_seconds=2.0, answer_seconds=3.0, connect_seconds=2.0, pool_seconds=1.0, writers=1, connections=4
)
_OUTBOXES: dict[str, Outbox[Any]] = {"webhooks": WEBHOOKS, "hand_overs": HAND_OVERS}
_Values = Mapping[tuple[str, ...], float]


class Looked(Collector, ABC):
    """Looks at a scrape, one at a time, unless it has done so a moment ago."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Metric] = []
        self._looked_at: float | None = None

    def collect(self) -> Iterable[Metric]:
        """What was found, at most ``FRESH_SECONDS`` ago."""
        with self._lock:
            if self._looked_at is None or time.monotonic() - self._looked_at > FRESH_SECONDS:
                self._found = list(self._look())
                self._looked_at = time.monotonic()
            return self._found

    @abstractmethod
    def _look(self) -> Iterator[Metric]:
        """Look again."""


class InstallationCollector(Looked):
    """Queues, workers and outboxes; where the database does not answer, that alone.

    Args:
        database: is asked a few indexed questions, within its timeouts.
        quota: of tenants that have no limits of their own.
    """

    def __init__(self, database: Database, quota: Quota) -> None:
        super().__init__()
        self._database = database
        self._quota = quota

    def _look(self) -> Iterator[Metric]:
        try:
            with self._database.read() as session:
                found = figures(session, self._quota)
                backlogs = {name: outbox.backlog(session) for name, outbox in _OUTBOXES.items()}
        except SQLAlchemyError as error:
            log.warning("metrics.database_away: %s", error)
            yield _family(declared.DATABASE_UP, {(): 0.0})
            return
        yield _family(declared.DATABASE_UP, {(): 1.0})
        yield from _of_queues(found)
        yield _family(declared.OUTBOX_PENDING, {(name,): float(pending) for name, (pending, _) in backlogs.items()})
        yield _family(declared.OUTBOX_AGE, {(name,): seconds for name, (_, seconds) in backlogs.items()})


_OF_QUEUES: tuple[tuple[Declared, Callable[[QueueOut], float]], ...] = (
    (declared.QUEUE_DUE, lambda queue: queue.queued.due),
    (declared.QUEUE_AGE, lambda queue: queue.oldest_due_age_seconds or 0.0),
    (declared.QUEUE_WAITED, lambda queue: queue.waited_seconds),
    (declared.QUEUE_WANTED, lambda queue: queue.wanted_slots),
    (declared.SHORT_SLOTS, lambda queue: queue.slots.short),
    (declared.WORKERS, lambda queue: queue.workers),
    (declared.DEAF_WORKERS, lambda queue: queue.deaf_workers),
)


def _of_queues(found: Sequence[QueueOut]) -> Iterator[Metric]:
    for metric, value in _OF_QUEUES:
        yield _family(metric, {(queue.name,): value(queue) for queue in found})
    jobs: dict[tuple[str, ...], float] = {}
    slots: dict[tuple[str, ...], float] = {}
    for queue in found:
        jobs[queue.name, "queued"] = queue.queued.due + queue.queued.delayed
        jobs[queue.name, "running"] = queue.running
        slots[queue.name, "busy"], slots[queue.name, "free"] = queue.slots.busy, queue.slots.free
    yield _family(declared.JOBS, jobs)
    yield _family(declared.SLOTS, slots)


class HostCollector(Looked):
    """Disks that this process uses, and what it is.

    Args:
        settings: name the folders.
        process: which kind of process this is.
    """

    def __init__(self, settings: Settings, process: Process) -> None:
        super().__init__()
        self._process = process
        self._places = {"data": settings.data_dir, "storage": settings.storage_dir}
        self._caches: dict[tuple[str, ...], Path] = {}
        if process == "worker":
            self._places |= {
                "scratch": settings.scratch_dir, "cache": settings.cache_dir, "checkpoints": settings.checkpoint_dir
            }  # fmt: skip
            if settings.cache_bytes:
                self._caches["results",] = settings.cache_dir
            if settings.storage_url:
                self._caches["files",] = settings.storage_dir

    def _look(self) -> Iterator[Metric]:
        yield _family(declared.BUILD, {(VERSION, platform.python_version(), self._process): 1.0})
        free: dict[tuple[str, ...], float] = {}
        size: dict[tuple[str, ...], float] = {}
        for place, folder in self._places.items():
            try:
                found = shutil.disk_usage(folder)
            except OSError as error:  # it was not made yet, or its mount is missing
                log.debug("metrics.no_disk place=%s: %s", place, error)
                continue
            free[place,], size[place,] = found.free, found.total
        yield _family(declared.DISK_FREE, free)
        yield _family(declared.DISK_SIZE, size)
        if self._caches:
            yield _family(declared.CACHE_BYTES, dict(self._cache_sizes()))

    def _cache_sizes(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for cache, folder in self._caches.items():
            try:
                yield cache, float(_bytes_below(str(folder)))
            except OSError as error:
                log.warning("metrics.no_cache cache=%s: %s", *cache, error)


def _bytes_below(folder: str) -> int:
    """Of all files; what goes away meanwhile counts nothing."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += _bytes_below(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _family(metric: Declared, values: _Values) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.words, labels=tuple(metric.labels))
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


class _Counted(Collector):
    """What this process counts, of all that is declared; others would show it as zero for ever."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def collect(self) -> Iterable[Metric]:
        for family in COUNTED.collect():
            found = DECLARED.get(family.name) or DECLARED.get(f"{family.name}_total")
            if found is None or self._process in found.processes:
                yield family


def registry_of(settings: Settings, process: Process, database: Database | None = None) -> CollectorRegistry:
    """All that a process shows.

    Args:
        settings: of the process.
        process: which kind of process this is.
        database: where the installation's figures are looked up; None: by others.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counted(process))
    registry.register(HostCollector(settings, process))
    if database is not None:
        registry.register(InstallationCollector(database, settings.quota))
    return registry
