"""Folders that this host has no use for any more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from service.db import Database
from service.ids import is_id
from service.settings import Settings
from worker import repository
from worker.checkpoints import collect_checkpoints
from worker.supervisor import scratch_name
from worker.upkeep.collector import STRANGE_SECONDS, Tally, age_seconds_of, children, tally_of

SCRATCH_AGE_SECONDS = 60.0


def collect_scratch(settings: Settings, database: Database) -> int:
    """Remove what a killed predecessor has left on this host; returns how many folders.

    Those are scratch folders of attempts that are not running, and checkpoints of jobs that have ended.
    """
    collected = collect_checkpoints(settings, database)
    return collected + remove_folders(idle_scratch(database, settings.scratch_dir)).items


def idle_scratch(database: Database, scratch_dir: Path) -> list[Path]:
    """Scratch folders of attempts that are not running, and that are older.

    The folder may be shared with anything: what is not named as a scratch folder is nobody's business here, and one of
    a job that this database does not know may be another installation's, and running.
    """
    folders = {path: found[0] for path in children(scratch_dir) if (found := attempt_of(path.name)) is not None}
    old = {path: job_id for path, job_id in folders.items() if age_seconds_of(path) > SCRATCH_AGE_SECONDS}
    if not old:
        return []
    with database.read() as session:
        running = {scratch_name(*pair) for pair in repository.running_attempts(session)}
        known = repository.known_jobs(session, set(old.values()))
    return [
        path
        for path, job_id in old.items()
        if path.name not in running and (job_id in known or age_seconds_of(path) > STRANGE_SECONDS)
    ]


def attempt_of(name: str) -> tuple[str, int] | None:
    """Job and attempt whose scratch folder has this name, the reverse of ``scratch_name``; None: it is no such name."""
    job_id, _, attempt = name.partition(".")
    return (job_id, int(attempt)) if is_id(job_id, "job") and attempt.isascii() and attempt.isdigit() else None


def remove_folders(folders: Sequence[Path]) -> Tally:
    """Remove folders with all that is in them; what cannot be removed now is looked at again next time."""
    removed = tally_of(folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return removed
