"""The emitted bytes stay what they were; a change on purpose is made with ``python -m tests.golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.cases import CASES, NETWORKS, digest
from tests.golden.table import read
from tests.support.data import DATA_MARKS

GOLDEN = read()
HERE = GOLDEN.here
SHORT = ("tiny outliers split", "tiny a16w4, overridden", "random 21 qnn", "random 8 xint8", "mnist float16")
ELSEWHERE = "the golden table knows no other versions of libraries, nor this kind of processor for this case"


def _case(name: str) -> object:
    unknown = pytest.mark.skipif(name not in HERE, reason=ELSEWHERE)
    lane = [] if name in SHORT else [pytest.mark.long]
    return pytest.param(name, marks=[unknown, *lane, *(DATA_MARKS if NETWORKS[CASES[name].network].is_real else [])])


def test_the_table_holds_every_case_on_some_processor() -> None:
    kept = {name for hashes in GOLDEN.processors.values() for name in hashes}
    assert kept == set(CASES), "for a new case: python -m tests.golden --write 'ITS NAME'"


@pytest.mark.parametrize("name", [_case(name) for name in CASES])
def test_the_emitted_bytes_stay_as_they_were(name: str, tmp_path: Path) -> None:
    found, fates = digest(CASES[name], tmp_path)
    assert found == HERE[name], f"{name} ({fates}): see python -m tests.golden"
