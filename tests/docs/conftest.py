from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PREPROCESSING, make_workplace
from tests.worker.running import Service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the blocks of all pages that name one."""
    with Service(tmp_path_factory.mktemp("service") / "home") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the pages name."""
    make_workplace(tmp_path)
    (tmp_path / "preprocessing.json").write_text(PREPROCESSING)
    return tmp_path
