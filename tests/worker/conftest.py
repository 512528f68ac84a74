from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.workbench import Workbench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    workbench = Workbench(tmp_path)
    yield workbench
    workbench.close()
