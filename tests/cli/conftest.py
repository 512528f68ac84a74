from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny import Tiny, make_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def quantmill(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``quantmill ARGUMENTS`` in an empty folder."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
        return subprocess.run(
            [sys.executable, "-P", "-m", "worker.cli", *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
