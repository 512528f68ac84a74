"""The tables that say what is tested when: slices of the long lane, and planted faults."""

from __future__ import annotations

import ast

import pytest

from tests.support.source import ROOT, files
from tools import slices as lanes
from tools.mutation.faults import read_faults


def test_every_test_is_in_one_slice_and_every_module_is_covered() -> None:
    slices = lanes.read_slices()
    tests = [name for name in files("tests") if name.rpartition("/")[2].startswith("test_")]
    assert [name for name in tests if lanes.slice_of(name, slices) is None] == []
    assert sorted(name for part in slices for name in lanes.tests_of(part, slices)) == sorted(tests)
    for path in (path for part in slices.values() for path in (*part.tests, *part.covers)):
        assert (ROOT / path).exists(), f"tests/slices.toml names {path}"
    modules = files("quantmill", "service", "worker")
    assert [name for name in modules if not any(part.is_needed_by(name) for part in slices.values())] == []


def test_the_innermost_folder_names_the_slice() -> None:
    slices = lanes.read_slices()
    assert lanes.slice_of("tests/unit/quantizer/plan/test_plan.py", slices) == "plan"
    assert lanes.slice_of("tests/unit/quantizer/training/test_trainer.py", slices) == "algorithms"


@pytest.mark.slow
def test_every_fault_can_be_planted() -> None:
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 150
    assert sum(fault.history for fault in faults) >= 40
    for fault in faults:
        text = (ROOT / fault.file).read_text()
        planted = fault.planted(text)
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text)), fault.name
