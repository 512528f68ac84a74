"""What tests of the loops do to messages, jobs, uploads and files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sqlalchemy import insert

from service.db import Database, db_now
from service.jobs import transitions
from service.resources import new_id
from service.tables import Job, Upload
from tests.worker.workbench import Workbench


def claim(bench: Workbench, job_id: str, lease_seconds: float = 60) -> Job:
    with bench.database.write() as session:
        job = transitions.claim(session, job_id, worker_id="w", lease_seconds=lease_seconds)
    assert job is not None
    return job


def add_upload(database: Database, *, expires_in: float, sha256: str | None = None) -> str:
    upload_id = new_id("upl")
    with database.write() as session:
        now = db_now()
        session.execute(
            insert(Upload).values(
                id=upload_id, tenant_id="default", filename="net.onnx", state="complete" if sha256 else "open",
                sha256=sha256, size_bytes=4 if sha256 else None, created_at=now, expires_at=now + expires_in,
            )
        )  # fmt: skip
    return upload_id


def make_old(path: Path, seconds: float = 90_000) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))
