"""All metrics of the service, declared once: name, type, labels, processes and meaning; docs/monitoring.md lists them.

Counters and histograms count where a thing happens, in the process that does it. Gauges are looked up at each scrape,
see ``service.monitoring.collectors``. Labels are bounded: no ids, no tenants, no paths as they were asked for, and what
a runner or a client may choose passes ``Known``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

Process = Literal["api", "worker", "reconciler"]
Kind = Literal["counter", "gauge", "histogram"]
# A label's values where they are known beforehand, or else what they are, in words.
Values = tuple[str, ...] | str

API: tuple[Process, ...] = ("api",)
WORKER: tuple[Process, ...] = ("worker",)
RECONCILER: tuple[Process, ...] = ("reconciler",)
LOOKS: tuple[Process, ...] = ("api", "reconciler")
ALL: tuple[Process, ...] = ("api", "worker", "reconciler")
OTHER = "other"


@dataclass(frozen=True)
class Declared:
    """One metric."""

    name: str
    kind: Kind
    words: str  # what it tells
    labels: Mapping[str, Values]  # by name
    processes: tuple[Process, ...]  # that show it


DECLARED: dict[str, Declared] = {}
# What this process has counted. It is shown by ``service.monitoring.collectors.registry_of``.
COUNTED = CollectorRegistry(auto_describe=False)
# A sample more for each series, with the time of its first, which nothing here needs.
disable_created_metrics()  # type: ignore[no-untyped-call]
ProcessCollector(registry=COUNTED)

_QUEUE = "a queue: cpu, gpu, inspect"
_OUTBOXES = ("webhooks", "hand_overs")
_MODES = ("read", "write")
# Seconds: of requests and calls, of what a disk or a network does, and of work that lasts.
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0)
_WORK_SECONDS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)


def _declare(
    kind: Kind, name: str, words: str, labels: Mapping[str, Values] | None, processes: tuple[Process, ...]
) -> Declared:
    found = DECLARED[name] = Declared(name, kind, words, labels or {}, processes)
    return found


def _looked_up(
    name: str, words: str, processes: tuple[Process, ...], labels: Mapping[str, Values] | None = None
) -> Declared:
    return _declare("gauge", name, words, labels, processes)


def _counter(
    name: str, words: str, processes: tuple[Process, ...], labels: Mapping[str, Values] | None = None
) -> Counter:
    found = _declare("counter", name, words, labels, processes)
    counter = Counter(name, words, tuple(found.labels), registry=COUNTED)
    if len(found.labels) == 1:
        ((label, values),) = found.labels.items()
        for value in values if isinstance(values, tuple) else ():
            counter.labels(**{label: value})  # a rate is zero from the beginning, not absent
    return counter


def _gauge(name: str, words: str, processes: tuple[Process, ...], labels: Mapping[str, Values] | None = None) -> Gauge:
    found = _declare("gauge", name, words, labels, processes)
    return Gauge(name, words, tuple(found.labels), registry=COUNTED)


def _histogram(
    name: str,
    words: str,
    processes: tuple[Process, ...],
    labels: Mapping[str, Values],
    buckets: tuple[float, ...] = _CALL_SECONDS,
) -> Histogram:
    found = _declare("histogram", name, words, labels, processes)
    return Histogram(name, words, tuple(found.labels), registry=COUNTED, buckets=buckets)


# HTTP. Names and labels are OpenTelemetry's (semantic conventions of HTTP servers, stable).
HTTP_DURATION = _histogram(
    "http_server_request_duration_seconds",
    "Time from a request's head to the end of its answer; long polls, event streams and downloads last by design.",
    API,
    {
        "http_request_method": "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, or _OTHER",
        "http_route": "the template of the route; unmatched: there is none, or it was refused before",
        "http_response_status_code": "the status; 499: the client left before there was one",
    },
    _REQUEST_SECONDS,
)
HTTP_ACTIVE = _gauge("http_server_active_requests", "Requests that are being served.", API)
SHARED_LIMITS = _counter(
    "quantmill_shared_limits_total",
    "Times that a process wanted tokens of a rate limit from Redis; if it failed, or was skipped as it had failed just "
    "before, this process limits by itself.",
    API,
    {"result": ("answered", "failed", "skipped")},
)
UPLOADED = _counter("quantmill_uploads_bytes_total", "Bytes of uploads that were written.", API)

# The installation, as the database knows it. All processes that show these show the same: aggregate with max.
DATABASE_UP = _looked_up("quantmill_database_up", "1 if the database answered this look, otherwise 0.", LOOKS)
JOBS = _looked_up(
    "quantmill_jobs", "Jobs that have not ended.", LOOKS, {"queue": _QUEUE, "state": ("queued", "running")}
)
QUEUE_DUE = _looked_up("quantmill_queue_due_jobs", "Depth: queued jobs that can start now.", LOOKS, {"queue": _QUEUE})
QUEUE_AGE = _looked_up(
    "quantmill_queue_oldest_age_seconds",
    "Time that the oldest job that can start now has been waiting; 0 if there is none.",
    LOOKS,
    {"queue": _QUEUE},
)
QUEUE_WAITED = _looked_up(
    "quantmill_queue_waited_seconds",
    "The same, without jobs of tenants at their limit of running jobs: only slots are missing.",
    LOOKS,
    {"queue": _QUEUE},
)
QUEUE_WANTED = _looked_up(
    "quantmill_queue_wanted_slots",
    "Slots needed, for autoscalers: running jobs plus jobs that could start with enough slots.",
    LOOKS,
    {"queue": _QUEUE},
)
SLOTS = _looked_up("quantmill_slots", "Slots of the live workers.", LOOKS, {"queue": _QUEUE, "state": ("busy", "free")})
SHORT_SLOTS = _looked_up(
    "quantmill_short_slots", "Of these, slots that are kept for short jobs.", LOOKS, {"queue": _QUEUE}
)
WORKERS = _looked_up("quantmill_workers", "Workers seen within the last minute.", LOOKS, {"queue": _QUEUE})
DEAF_WORKERS = _looked_up(
    "quantmill_deaf_workers", "Of these, workers that no message reaches.", LOOKS, {"queue": _QUEUE}
)
OUTBOX_PENDING = _looked_up(
    "quantmill_outbox_pending", "Deliveries and hand-overs still to be sent.", LOOKS, {"outbox": _OUTBOXES}
)
OUTBOX_AGE = _looked_up(
    "quantmill_outbox_overdue_seconds",
    "Time that the oldest of them that is due has been waiting to be sent; 0 if none is due.",
    LOOKS,
    {"outbox": _OUTBOXES},
)

# Jobs.
CLAIMS = _counter(
    "quantmill_claims_total",
    "Claims of released jobs; lost: another worker has it, it was canceled, or its tenant is at its limit.",
    WORKER,
    {"result": ("won", "lost")},
)
JOB_WAIT = _histogram(
    "quantmill_job_wait_seconds",
    "Time from the moment from which a job could start to its claim.",
    WORKER,
    {"queue": _QUEUE},
    _WORK_SECONDS,
)
ATTEMPTS = _counter(
    "quantmill_job_attempts_total",
    "Attempts that have ended.",
    WORKER,
    {
        "queue": _QUEUE,
        "outcome": ("succeeded", "failed", "retry", "interrupted", "canceled", "fenced"),
        "code": "the code of the error, or of what the job waits for; none: neither",
    },
)
STAGES = _histogram(
    "quantmill_job_stage_duration_seconds",
    "Time of each stage of jobs that succeeded, as their reports state it.",
    WORKER,
    {"stage": "a stage of the report", "recipe": "the preset, or custom"},
    _WORK_SECONDS,
)
SANDBOX_KILLS = _counter(
    "quantmill_sandbox_kills_total",
    "Runners that the worker or the kernel ended, by reason.",
    WORKER,
    {
        "reason": (
            "canceled", "shutdown", "fenced", "deadline", "stalled", "protocol", "memory", "budget", "away",
            "cpu_time", "system_call", "sigkill",
        )
    },
)  # fmt: skip
LEASES_LOST = _counter("quantmill_leases_lost_total", "Leases that a worker found lost to another attempt.", WORKER)
FENCED = _counter(
    "quantmill_fenced_publications_total", "Results that were not published because the lease was lost.", WORKER
)
LEASES_EXPIRED = _counter(
    "quantmill_leases_expired_total",
    "Leases of workers that stopped responding; their jobs are tried again, or fail.",
    RECONCILER,
)
CACHE_BYTES = _looked_up(
    "quantmill_cache_bytes",
    "Size of what jobs computed for later ones (results), and of copies of a bucket's files (files), on this host.",
    WORKER,
    {"cache": ("results", "files")},
)

# What the processes depend on.
TRANSACTIONS = _histogram(
    "quantmill_database_transaction_duration_seconds",
    "Time of a database transaction: waiting for its turn, statements, and what is computed between them.",
    ALL,
    {"mode": _MODES},
)
DATABASE_ERRORS = _counter(
    "quantmill_database_errors_total",
    "Transactions that the database refused or did not answer.",
    ALL,
    {"mode": _MODES},
)
PUBLISHES = _histogram(
    "quantmill_broker_publish_duration_seconds",
    "Time to send the message of a job to the broker.",
    ALL,
    {"result": ("sent", "failed")},
)
MESSAGES_LOST = _counter(
    "quantmill_messages_lost_total", "Released jobs that no worker claimed in time, released again.", ALL
)
STORE = _histogram(
    "quantmill_store_operation_duration_seconds",
    "Time of one operation of the file store.",
    ALL,
    {"operation": "put, get, and others", "result": ("ok", "error")},
)
DISK_FREE = _looked_up(
    "quantmill_disk_free_bytes",
    "Free space of the file system of a folder.",
    ALL,
    {"place": ("data", "storage", "scratch", "cache", "checkpoints")},
)
DISK_SIZE = _looked_up(
    "quantmill_disk_size_bytes", "Size of the same file system.", ALL, {"place": "as of quantmill_disk_free_bytes"}
)

# The reconciler.
ROUNDS = _histogram(
    "quantmill_reconcile_duration_seconds",
    "Time of a round of a loop.",
    RECONCILER,
    {"loop": "a loop"},
    _REQUEST_SECONDS,
)
ROUND_FAILURES = _counter(
    "quantmill_reconcile_failures_total", "Rounds that ended with an error.", RECONCILER, {"loop": "a loop"}
)
ROUND_SUCCESS = _gauge(
    "quantmill_reconcile_last_success_timestamp_seconds",
    "When a round of the loop last succeeded, in seconds since 1970 UTC.",
    RECONCILER,
    {"loop": "a loop"},
)
ROUND_PERIOD = _gauge(
    "quantmill_reconcile_period_seconds", "Time between two rounds of the loop.", RECONCILER, {"loop": "a loop"}
)
SENT = _counter(
    "quantmill_outbox_attempts_total",
    "Attempts to send a delivery or a hand-over.",
    RECONCILER,
    {"outbox": _OUTBOXES, "outcome": ("delivered", "retried", "failed", "fenced")},
)

BUILD = _looked_up(
    "quantmill_build_info",
    "Always 1; its labels show what runs.",
    ALL,
    {"version": "of Quantmill", "python": "its version", "process": ALL},
)


class Known:
    """Bounds the values of a label that others choose: what is new beyond ``most``, or no plain word, is ``other``.

    Args:
        most: values.
    """

    _WORD = re.compile(r"[a-z][a-z0-9_. -]{0,62}")

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value, or ``other``."""
        with self._lock:
            if value in self._values:
                return value
            if len(self._values) >= self._most or self._WORD.fullmatch(value) is None:
                return OTHER
            self._values.add(value)
            return value
