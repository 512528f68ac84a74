"""What the client knows: every request that it sent, and what came back. And the check of the service against it.

The client's ledger is its own and only grows. After the faults, once everything is healed and every job has ended:

    lost                 something that was promised is not there: a job that was acknowledged and has no row, has not
                         ended, or has succeeded without its report, its files, or a model that loads; a file that any
                         row names and that is not whole
    duplicated_effects   something was done more than once: two jobs for one key, two ends of one job
    unexpected           anything else that no client or operator should see: an answer 500, a job that failed, a row
                         that nobody asked for, a gap in a job's events, a process that was left behind, a stored
                         file that nobody names and no collection removes
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db import Database
from service.files import repository as files
from service.storage import FileStore
from service.storage.base import file_name
from service.storage.bucket import BucketStore
from service.tables import Artifact, Job, JobEvent, ReportRow, Upload
from service.tables.jobs import TERMINAL_STATES
from worker.upkeep.garbage import discard_garbage, empty_trash, remove_leftovers

AnyStore = FileStore | BucketStore
KEY_LABEL = "key"
_ENDS = {"job.succeeded": "succeeded", "job.failed": "failed", "job.canceled": "canceled"}


@dataclass
class Entry:
    """What the client knows of one submission, under one idempotency key."""

    key: str
    acknowledged: list[str] = field(default_factory=list)
    unsure: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    cancel_asked: bool = False


class Ledger:
    """Append-only; any number of threads may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._stream = path.open("a", encoding="utf-8")
        self.entries: dict[str, Entry] = {}

    def asked(self, key: str, body: Mapping[str, Any]) -> None:
        with self._lock:
            self.entries.setdefault(key, Entry(key))
            self._write(key=key, asked=body)

    def acknowledged(self, key: str, status: int, job_id: str) -> None:
        with self._lock:
            self.entries[key].acknowledged.append(job_id)
            self._write(key=key, status=status, job_id=job_id)

    def refused(self, key: str, status: int, code: str) -> None:
        with self._lock:
            self.entries[key].refused[f"{status} {code}"] += 1
            self._write(key=key, status=status, code=code)

    def unanswered(self, key: str, reason: str) -> None:
        with self._lock:
            self.entries[key].unsure += 1
            self._write(key=key, unanswered=reason)

    def cancel(self, key: str) -> None:
        with self._lock:
            self.entries[key].cancel_asked = True
            self._write(key=key, cancel=True)

    def close(self) -> None:
        self._stream.close()

    def _write(self, **line: Any) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


@dataclass
class Verdict:
    """What the check found; each finding in words."""

    lost: list[str] = field(default_factory=list)
    duplicated_effects: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated_effects or self.unexpected)

    def __str__(self) -> str:
        return (
            f"lost={len(self.lost)} duplicated_effects={len(self.duplicated_effects)} unexpected={len(self.unexpected)}"
        )

    def told(self) -> str:
        kinds = (("lost", self.lost), ("duplicated", self.duplicated_effects), ("unexpected", self.unexpected))
        return "\n".join([str(self), *(f"  {kind}: {finding}" for kind, found in kinds for finding in found)])


def check(
    ledger: Ledger,
    database: Database,
    store: AnyStore,
    *,
    may_fail: Collection[str] = (),
    leftovers: Mapping[int, str] | None = None,
) -> Verdict:
    """Compare the service with the ledger; everything must be healed and every job have ended.

    What may be collected is collected first, however young: it must have taken nothing that is needed, and left
    nothing else.
    """
    verdict = Verdict()
    verdict.unexpected += [f"process {pid} was left: {command}" for pid, command in (leftovers or {}).items()]
    checked_files: dict[str, str | None] = {}
    collect_all(database, store)
    with database.read() as session:
        jobs = list(session.scalars(select(Job)))
        by_key: dict[str, list[Job]] = {}
        for job in jobs:
            verdict.states[job.state] += 1
            _check_job(session, store, job, verdict, checked_files)
            if job.kind == "quantize":
                by_key.setdefault(job.labels.get(KEY_LABEL, ""), []).append(job)
        verdict.lost += troubles(session, store, known=checked_files)
        verdict.unexpected += strays(session, store)
    for key, found in by_key.items():
        if key not in ledger.entries:
            verdict.unexpected += [f"{job.id} was never asked for" for job in found]
    for entry in ledger.entries.values():
        _check_entry(entry, by_key.get(entry.key, []), verdict, may_fail=entry.key in may_fail)
    return verdict


def _check_entry(entry: Entry, jobs: list[Job], verdict: Verdict, *, may_fail: bool) -> None:
    known = {job.id for job in jobs}
    acknowledged = set(entry.acknowledged)
    verdict.lost += [f"{job_id} was acknowledged ({entry.key}) and has no row" for job_id in acknowledged - known]
    if len(acknowledged | known) > 1:
        verdict.duplicated_effects.append(f"{entry.key} made {', '.join(sorted(acknowledged | known))}")
    if known and not acknowledged and not entry.unsure:
        verdict.unexpected.append(f"{entry.key} was refused ({dict(entry.refused)}), and there is {', '.join(known)}")
    for answer in entry.refused:
        if answer.split()[0] == "500":
            verdict.unexpected.append(f"{entry.key} was answered with {answer}")
    for job in jobs:
        if job.state == "failed" and not may_fail:
            code = (job.error or {}).get("code")
            verdict.unexpected.append(f"{job.id} ({entry.key}) failed on attempt {job.attempt}: {code}")
        if job.state == "canceled" and not entry.cancel_asked:
            verdict.unexpected.append(f"{job.id} ({entry.key}) was canceled, and nobody asked for that")


def _check_job(
    session: Session, store: AnyStore, job: Job, verdict: Verdict, checked_files: dict[str, str | None]
) -> None:
    if job.state not in TERMINAL_STATES:
        verdict.lost.append(f"{job.id} ({job.kind}) has not ended: {job.state}, attempt {job.attempt}")
    events = list(session.scalars(select(JobEvent).where(JobEvent.job_id == job.id).order_by(JobEvent.seq)))
    if [event.seq for event in events] != list(range(1, job.last_seq + 1)):
        verdict.unexpected.append(f"the events of {job.id} have gaps: {[event.seq for event in events]}")
    ends = [_ENDS[event.data["name"]] for event in events if event.data.get("name") in _ENDS]
    if len(ends) > 1:
        verdict.duplicated_effects.append(f"{job.id} ended {len(ends)} times: {', '.join(ends)}")
    elif job.state in TERMINAL_STATES and ends != [job.state]:
        verdict.unexpected.append(f"{job.id} is {job.state}, its events say {ends}")
    if events and any(event.attempt > job.attempt for event in events):
        verdict.unexpected.append(f"the events of {job.id} tell of attempts that it never had")
    if job.kind == "quantize":
        _check_products(session, store, job, verdict, checked_files)


def _check_products(
    session: Session, store: AnyStore, job: Job, verdict: Verdict, checked_files: dict[str, str | None]
) -> None:
    report = session.get(ReportRow, job.id)
    artifacts = list(session.scalars(select(Artifact).where(Artifact.job_id == job.id)))
    if job.state != "succeeded":
        if report is not None or artifacts:
            verdict.unexpected.append(f"{job.id} is {job.state} and has a report or files")
        return
    models = [artifact for artifact in artifacts if artifact.kind == "model"]
    if report is None or len(models) != 1:
        verdict.lost.append(f"{job.id} succeeded with {len(models)} models and report {report is not None}")
        return
    if {report.attempt, *(artifact.attempt for artifact in artifacts)} != {job.attempt}:
        verdict.duplicated_effects.append(f"{job.id} has products of several attempts")
    for artifact in artifacts:
        if artifact.sha256 not in checked_files:
            checked_files[artifact.sha256] = _artifact_trouble(store, artifact)
        trouble = checked_files[artifact.sha256]
        if trouble is not None:
            verdict.lost.append(f"{job.id}: its {artifact.kind} {trouble}")
    if report.body["manifest"]["output_sha256"] != models[0].sha256:
        verdict.lost.append(f"{job.id}: the report is about another model")


def _artifact_trouble(store: AnyStore, artifact: Artifact) -> str | None:
    trouble = file_trouble(store, artifact.sha256, artifact.size_bytes)
    if trouble is None and artifact.kind == "model":
        try:
            with store.lend(artifact.sha256) as path:
                onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - onnxruntime has no base class for what it raises
            return f"does not load: {error}"
    return trouble


# --- the store against the rows ---

# Nothing is too young to be collected.
_ANY_AGE = -1.0
_MANY = 1_000_000
_LOCK = "collect.lock"


def collect_all(database: Database, store: AnyStore) -> None:
    """Collect what ages decide about at once, as the reconciler would sooner or later."""
    if not isinstance(store, FileStore):
        time.sleep(1.1)  # a bucket's clock shows whole seconds, and what was stored anew since is spared
    discard_garbage(database, store, _MANY, age_seconds=_ANY_AGE)
    empty_trash(database, store, _MANY, age_seconds=_ANY_AGE)
    remove_leftovers(database, store, _MANY, age_seconds=_ANY_AGE)


def file_trouble(store: AnyStore, sha256: str, size_bytes: int | None) -> str | None:
    read = store.read_through(sha256, lambda block: None)
    if read.damage == "missing":
        return "is not in the store"
    return None if read.damage is None and size_bytes in (None, read.size_bytes) else "is damaged"


def troubles(session: Session, store: AnyStore, *, known: Collection[str]) -> list[str]:
    """Of files that rows name, those which are not whole; ``known`` were looked at elsewhere."""
    found = []
    for file in files.list_named(session):
        trouble = None if file.sha256 in known else file_trouble(store, file.sha256, file.size_bytes)
        if trouble is not None:
            names = ", ".join(f"{name.kind} {name.id}" for name in files.names_of(session, file.sha256))
            found.append(f"the file {file.sha256} ({names}) {trouble}")
    return found


def strays(session: Session, store: AnyStore) -> list[str]:
    """Files that no row names, and that belong to no upload on its way; after a collection there is none."""
    digests = {file.sha256 for file in files.list_named(session)}
    uploads = set(session.scalars(select(Upload.id)))
    if not isinstance(store, FileStore):
        return _strange_objects(store, digests, uploads)
    named = {store.path(sha256) for sha256 in digests}
    return [
        f"{path.relative_to(store.root)} was left in the store"
        for path in sorted(store.root.rglob("*"))
        if path.is_file() and path not in named and not _is_part(path, store, uploads) and path.name != _LOCK
    ]


def _strange_objects(store: BucketStore, digests: Collection[str], uploads: Collection[str]) -> list[str]:
    known = {file_name(sha256) for sha256 in digests}
    found = [one.name for folder in ("sha256", "trash", "incoming") for one in store.objects.list(folder)]
    strange = (name for name in found if name not in known and name.split("/")[1] not in uploads)
    return [f"{name} was left in the bucket" for name in strange]


def _is_part(path: Path, store: AnyStore, uploads: Collection[str]) -> bool:
    return path.parent == store.incoming and path.name.partition(".")[0] in uploads
