"""The emitted bytes stay what they were; a change on purpose is made with ``python -m tests.golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import table
from tests.golden.cases import CASES, NETWORKS, digest
from tests.golden.table import Golden, libraries, processor, read
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


def test_a_change_on_one_processor_is_forgotten_on_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Golden(libraries(), {processor(): {"a": "1", "b": "2"}, "other": {"a": "3", "b": "4"}})
    found = kept.with_hashes({"a": "5", "b": "2", "c": "6"})
    assert found.processors == {processor(): {"a": "5", "b": "2", "c": "6"}, "other": {"b": "4"}}
    monkeypatch.setattr(table, "TABLE", tmp_path / "table.json")
    found.write()
    assert read() == found
    old = Golden({"numpy": "0.1"}, {processor(): {"a": "1"}, "other": {"a": "3"}})
    assert old.here == {}, "hashes of other libraries are dropped as a whole"
    assert old.with_hashes({"b": "2"}) == Golden(libraries(), {processor(): {"b": "2"}})
