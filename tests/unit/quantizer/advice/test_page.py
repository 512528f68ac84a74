"""docs/advice.md says what the table says."""

from __future__ import annotations

from pathlib import Path

from worker.quantizer.advice.page import advice_page
from worker.quantizer.advice.table import RULES

PAGE = Path(__file__).parents[4] / "docs" / "advice.md"


def test_the_page_is_current_and_names_every_advice() -> None:
    assert PAGE.read_text() == advice_page(), "run: python -m worker.quantizer.advice.page > docs/advice.md"
    assert all(f"`{rule.code}`" in advice_page() for rule in RULES)
