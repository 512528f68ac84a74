"""Folders that keep the checkpoints of a job from one attempt to the next.

    CHECKPOINT_DIR/JOB.checkpoints/...     what the runner keeps there; see ``worker.quantizer.run.checkpoint``

They lie beside the scratch folders of this host, or in a folder that all workers share: then the next attempt goes on
wherever it is. A folder lives as long as its job may have another attempt.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from service.db import Database
from service.ids import is_id
from service.settings import Settings
from worker import repository
from worker.upkeep.collector import STRANGE_SECONDS, age_seconds_of

log = logging.getLogger(__name__)

SUFFIX = ".checkpoints"
_MODE = 0o700


def checkpoint_folder(checkpoint_dir: Path, job_id: str) -> Path:
    """Where the checkpoints of a job lie, whether or not there are any."""
    return checkpoint_dir / f"{job_id}{SUFFIX}"


def open_checkpoints(checkpoint_dir: Path, job_id: str, *, limit_bytes: int) -> Path | None:
    """The folder for the next attempt of a job that is running, with what the attempts before left there.

    What they left beyond ``limit_bytes`` goes, the oldest first. None, and a line in the log, if the folder cannot be
    used, as when shared storage is away: a job without checkpoints is slower at worst.
    """
    folder = checkpoint_folder(checkpoint_dir, job_id)
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(mode=_MODE, exist_ok=True)
        dropped = _shrink(folder, limit_bytes)
    except OSError as error:
        log.warning("checkpoints.unavailable job_id=%s: %s", job_id, error)
        return None
    if dropped:
        log.warning("checkpoints.dropped job_id=%s files=%d limit=%d", job_id, dropped, limit_bytes)
    return folder


def settled_checkpoints(settings: Settings, database: Database) -> list[Path]:
    """The folders of jobs that have no attempt to come, in the shared place and on this host.

    A folder is only ever made for a running job, and a job that has ended never runs again: there is no race to lose,
    and any host may remove them, at any time. One of a job that the database does not know may belong to another
    installation that uses the same disk: it is left alone for long.

    Raises:
        OperationalError: the database is away.
    """
    folders = [path for place in {settings.checkpoint_dir, settings.scratch_dir} for path in _folders(place)]
    if not folders:
        return []
    with database.read() as session:
        jobs = {_job_of(path) for path in folders}
        live, known = repository.live_jobs(session, jobs), repository.known_jobs(session, jobs)
    return [
        path
        for path in folders
        if _job_of(path) not in live and (_job_of(path) in known or age_seconds_of(path) > STRANGE_SECONDS)
    ]


def collect_checkpoints(settings: Settings, database: Database) -> int:
    """Remove the folders of ``settled_checkpoints``; returns how many. What cannot be removed now is left for later.

    Raises:
        OperationalError: the database is away.
    """
    settled = settled_checkpoints(settings, database)
    for path in settled:
        shutil.rmtree(path, ignore_errors=True)
    return sum(not path.exists() for path in settled)


def _folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.glob(f"*{SUFFIX}") if is_id(_job_of(path), "job")]
    except OSError as error:
        log.warning("checkpoints.unavailable: %s", error)
        return []


def _job_of(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def _shrink(folder: Path, limit_bytes: int) -> int:
    """Remove the oldest files below ``folder`` until the rest fits; returns how many. Links are not followed."""
    files = sorted(_files(folder), key=lambda entry: entry[1].st_mtime_ns)
    size_bytes, dropped = sum(state.st_size for _, state in files), 0
    for path, state in files:
        if size_bytes <= limit_bytes:
            break
        path.unlink(missing_ok=True)
        size_bytes, dropped = size_bytes - state.st_size, dropped + 1
    return dropped


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            try:
                yield path, path.lstat()
            except FileNotFoundError:
                continue  # removed meanwhile
