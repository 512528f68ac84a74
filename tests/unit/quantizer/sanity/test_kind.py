"""Kinds of findings, and the page that lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.quantizer.sanity.kind import declare, declared, worst_first
from worker.quantizer.sanity.page import findings_page
from worker.quantizer.sanity.samples import FEW_SAMPLES, ONE_SAMPLE, SOME_IN_CALIBRATION

PAGE = Path(__file__).parents[4] / "docs" / "findings.md"


def test_the_page_is_current() -> None:
    made = findings_page()
    assert made == PAGE.read_text(), "run: python -m worker.quantizer.sanity.page > docs/findings.md"
    for kind in declared():
        assert f"| `{kind.code}` | {kind.severity}" in made
        assert kind.hint


@pytest.mark.parametrize("code", ["Not Kebab", "one-calibration-sample", ""])
def test_codes_are_new_and_in_kebab_case(code: str) -> None:
    with pytest.raises(ValueError, match="no new code"):
        declare(code, "info", "x", hint="y")


def test_the_worst_comes_first_and_once() -> None:
    few = FEW_SAMPLES({"a": 1}, count=3, percent=50.0)
    info = SOME_IN_CALIBRATION(shared=1, count=2)
    assert worst_first([info, few, ONE_SAMPLE(), few]) == (ONE_SAMPLE(), few, info)
    assert "3 calibration samples" in few.message and "50 %" in few.message
