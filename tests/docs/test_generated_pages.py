"""The pages of docs/ that are made from the code say what it says, and leave nothing out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.docs import config_page, metrics_page
from service.docs.__main__ import PAGES
from service.docs.fields import contracts_of

DOCS = Path(__file__).parents[2] / "docs"
# Pages whose file is called otherwise.
FILES = {"transitions": "jobs"}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    file = FILES.get(name, name)
    same = PAGES[name]() == (DOCS / f"{file}.md").read_text()  # a comparison of the whole would print it
    assert same, f"run: python -m service.docs {name} > docs/{file}.md"


@pytest.mark.slow
def test_the_command_prints_the_page_that_is_named() -> None:
    command = [sys.executable, "-m", "service.docs", "metrics"]
    made = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=True).stdout
    assert made == PAGES["metrics"]()


def test_every_contract_of_a_config_and_its_data_is_told_on_one_page() -> None:
    told = [*config_page.RECORDS, *metrics_page.RECORDS]
    assert set(told) == {*contracts_of(QuantizationConfig), *contracts_of(PreprocessingSpec)}
    assert len(told) == len(set(told))
