"""The pages of docs/ that are made from the code say what it says, and leave nothing out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.presets import PRESETS
from service.contracts.targets import TARGET_OPTIONS
from service.docs import config_page, metrics_page
from service.docs.__main__ import PAGES
from service.docs.fields import contracts_of, title_of
from service.jobs.transitions.table import TRANSITIONS

DOCS = Path(__file__).parents[2] / "docs"
# Pages whose file is called otherwise.
FILES = {"transitions": "jobs"}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    command = [sys.executable, "-m", "service.docs", name]
    made = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=True).stdout
    file = FILES.get(name, name)
    assert made == PAGES[name]() == (DOCS / f"{file}.md").read_text(), (
        f"run: python -m service.docs {name} > docs/{file}.md"
    )


def test_every_way_in_which_a_job_may_change_has_a_row() -> None:
    rows = [line.split(" | ") for line in (DOCS / "jobs.md").read_text().splitlines() if line.startswith("| T")]
    assert len(rows) == len(TRANSITIONS)
    for row, transition in zip(rows, TRANSITIONS, strict=True):
        assert row[:3] == [f"| {transition.name}", f"`{transition.action}`", transition.by]
        assert row[3].replace("`", "").split() == list(transition.origins)
        assert row[4] == f"`{transition.target}`"
        assert all(guard.words in row[5] for guard in transition.guards)


def test_every_contract_of_a_config_and_its_data_is_told_on_one_page() -> None:
    reached = {*contracts_of(QuantizationConfig), *contracts_of(PreprocessingSpec)}
    told = [*config_page.RECORDS, *metrics_page.RECORDS]
    assert set(told) == reached
    assert len(told) == len(reached)


def test_every_field_has_a_row() -> None:
    pages = {name: (DOCS / f"{name}.md").read_text() for name in ("config", "metrics")}
    for module, page in ((config_page, pages["config"]), (metrics_page, pages["metrics"])):
        for record in module.RECORDS:
            for field in record.model_fields:
                tagged = field in ("method", "kind") and title_of(record) != record.__name__
                wanted = title_of(record) if tagged else field
                assert f"`{wanted}`" in page, f"{record.__name__}.{field}"
    for preset in PRESETS:
        assert f"| `{preset}` |" in pages["config"]
    for options in TARGET_OPTIONS.values():
        for option in options:
            assert f"| `{option.name}` | {'on' if option.default else 'off'} |" in pages["config"]


def test_types_defaults_and_bounds_are_those_of_the_contract() -> None:
    page = (DOCS / "config.md").read_text()
    for row in (
        "| `block_size` | integer | `32` | at least 2, at most 65536 |",
        "| `percentile` | number | `99.999` | above 50.0, at most 100.0 |",
        "| `combination` | `A16W16_A8W16` `A16W16_A16W8` `A16W16_A8W8` `A16W8_A8W8` `A8W16_A8W8` or null | `null` |",
        "| `mean` | list of number | `[0.0]` | 1 to 4096 entries |",
        '| `goal` | [drop](#drop) or [distance](#distance) | `{"kind": "drop", "max_drop": 0.5}` |',
        "| `max_drop` | number | required | at least 0.0 |",
        "| `tensor_ranges` | name: [TensorRange](#tensorrange) | `{}` | at most 10000 keys |",
    ):
        assert row in page, row


@pytest.mark.parametrize("name", ["config", "metrics", "training"])
def test_the_configs_of_the_pages_are_valid(name: str) -> None:
    """A graph's ``path`` is for the command line, which puts the file's bytes in its place."""
    found = re.findall(r"```json\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
    assert found
    for text in found:
        document = json.loads(text.replace('"path": "mine.onnx"', '"base64": "AAAA"'))
        if "inputs" in document:
            PreprocessingSpec.model_validate(document)
        else:
            parse_config(document)
