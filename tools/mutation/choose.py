"""A pytest plugin: runs the tests that a planted fault needs, until their time is used up.

What to run stands in the file that ``QUANTMILL_CHOSEN`` names: {"seconds": recorded seconds to spend, "tests": {id:
seconds} in their order}. Tests of the files that are not named there (they are younger than the record) come last.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_YOUNG_SECONDS = 0.3


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = json.loads(Path(os.environ["QUANTMILL_CHOSEN"]).read_text())
    known: dict[str, float] = chosen["tests"]
    ranks = {test: rank for rank, test in enumerate(known)}
    items.sort(key=lambda item: ranks.get(item.nodeid, len(ranks)))
    left = chosen["seconds"]
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        seconds = known.get(item.nodeid, _YOUNG_SECONDS)
        fits = seconds <= left
        left -= seconds if fits else 0.0
        (kept if fits else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept
