"""Collectors over a real database and a real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.db import Database
from service.settings import Settings
from service.storage import FileStore
from tests.worker.upkeep.yard import Yard
from tests.worker.workbench import Workbench
from worker.upkeep.collector import Collector
from worker.upkeep.registry import collectors


@pytest.fixture
def collector(bench: Workbench) -> Callable[[str], Collector]:
    return lambda name: next(
        found for found in collectors(bench.settings, bench.database, bench.store) if found.name == name
    )


@pytest.fixture
def yard(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Yard]:
    """A database of either kind with a store in which nothing is too young to be collected."""
    settings.make_folders()
    yield Yard(database, FileStore(settings.storage_dir), tmp_path)
