"""Real models and data, for tests that need them: the folder named by QUANTMILL_DATA, by default ../shared/data.

Without the folder such tests are skipped; with QUANTMILL_REQUIRE_DATA=1 they fail instead. Of one test:
``@requires_data``; of a module: ``pytestmark = DATA_MARKS``. The folder is ``required_data_dir()``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import pytest

_T = TypeVar("_T")


def data_dir() -> Path | None:
    """The folder with real models and data, or None if there is none."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("QUANTMILL_DATA") or default)
    return folder if folder.is_dir() else None


def missing_data() -> str:
    """The one line that says what is missing and how to get it."""
    return (
        f"no real models and data at {os.environ.get('QUANTMILL_DATA') or '../shared/data'}: "
        "tests marked 'data' are skipped; set QUANTMILL_DATA to the folder"
    )


def required_data_dir() -> Path:
    """The folder with real models and data; fails the test if there is none."""
    folder = data_dir()
    if folder is None:
        pytest.fail(missing_data())
    return folder


DATA_MARKS = [
    pytest.mark.data,
    pytest.mark.skipif(data_dir() is None and os.environ.get("QUANTMILL_REQUIRE_DATA") != "1", reason=missing_data()),
]


def requires_data(test: _T) -> _T:
    """Mark a test function or class as needing real models and data."""
    for mark in DATA_MARKS:
        test = mark(test)
    return test
