"""Removes what a killed predecessor has left on this host."""

from __future__ import annotations

from service.db import Database
from service.settings import Settings
from worker.checkpoints import collect_checkpoints
from worker.upkeep.scratch import SCRATCH_AGE_SECONDS, idle_scratch, remove_folders


def collect_scratch(settings: Settings, database: Database, age_seconds: float = SCRATCH_AGE_SECONDS) -> int:
    """Remove what this host has no use for any more; returns how many folders.

    Those are scratch folders of attempts that are not running, and checkpoints of jobs that have ended.
    """
    collected = collect_checkpoints(settings, database)
    return collected + remove_folders(idle_scratch(database, settings.scratch_dir, age_seconds=age_seconds)).items
