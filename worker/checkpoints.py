"""Folders that keep the checkpoints of a job from one attempt to the next, beside the scratch folders of attempts.

    scratch/JOB.checkpoints/...     what the runner keeps there; see ``worker.quantizer.run.checkpoint``

A folder lives as long as its job may have another attempt. It belongs to this host: an attempt elsewhere starts anew.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from service.db import Database
from worker import repository

log = logging.getLogger(__name__)

SUFFIX = ".checkpoints"
_MODE = 0o700


def checkpoint_folder(scratch_dir: Path, job_id: str) -> Path:
    """Where the checkpoints of a job lie, whether or not there are any."""
    return scratch_dir / f"{job_id}{SUFFIX}"


def open_checkpoints(scratch_dir: Path, job_id: str, *, limit_bytes: int) -> Path:
    """The folder for the next attempt of a job that is running, with what the attempts before left there.

    What takes more than ``limit_bytes`` was not left there by the engine, which keeps the limit: all of it goes.

    Raises:
        OSError: the disk refused.
    """
    folder = checkpoint_folder(scratch_dir, job_id)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        folder.unlink()
    folder.mkdir(mode=_MODE, exist_ok=True)
    size_bytes = folder_bytes(folder)
    if size_bytes > limit_bytes:
        log.warning("checkpoints.dropped job_id=%s bytes=%d limit=%d", job_id, size_bytes, limit_bytes)
        shutil.rmtree(folder)
        folder.mkdir(mode=_MODE)
    return folder


def collect_checkpoints(scratch_dir: Path, database: Database) -> int:
    """Remove the folders on this host of jobs that have no attempt to come; returns how many.

    A folder is only ever made for a running job, and a job that has ended never runs again: there is no race to lose.
    """
    folders = {path.name.removesuffix(SUFFIX): path for path in scratch_dir.glob(f"*{SUFFIX}")}
    if not folders:
        return 0
    with database.read() as session:
        live = repository.live_jobs(session, folders)
    settled = [path for job_id, path in folders.items() if job_id not in live]
    for path in settled:
        shutil.rmtree(path, ignore_errors=True)
    return len(settled)


def folder_bytes(folder: Path) -> int:
    """What all files below ``folder`` take; links are not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except FileNotFoundError:
                continue  # removed meanwhile
    return total
