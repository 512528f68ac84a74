"""The emitted bytes stay what they were; a change on purpose is made with ``python -m tests.golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.cases import CASES, NETWORKS, digest
from tests.golden.table import machine, read
from tests.support.data import DATA_MARKS

GOLDEN = read()
HERE = machine()


def _case(name: str) -> object:
    return pytest.param(name, marks=DATA_MARKS if NETWORKS[CASES[name].network].is_real else [])


def test_the_table_holds_every_case() -> None:
    assert set(GOLDEN.hashes) == set(CASES), "run for the new case: python -m tests.golden --write WORDS OF ITS NAME"


@pytest.mark.skipif(
    GOLDEN.machine != HERE,
    reason="the golden table was made with other library versions or another kind of processor: "
    + ", ".join(name for name in HERE if HERE[name] != GOLDEN.machine.get(name)),
)
@pytest.mark.parametrize("name", [_case(name) for name in CASES])
def test_the_emitted_bytes_stay_as_they_were(name: str, tmp_path: Path) -> None:
    found, fates = digest(CASES[name], tmp_path)
    assert found == GOLDEN.hashes[name], f"{name} ({fates}): see python -m tests.golden"
