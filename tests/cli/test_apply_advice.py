"""apply-advice: a report becomes the config of the next run."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from service.contracts.config import parse_config
from service.contracts.report import Report
from tests.support.front import make_report
from worker.commands.report_view import print_report

FIGURE = {"metric": "top1", "unit": "%", "before": 41.1, "after": 86.3, "samples": 438, "seconds": 21.0}
TRIED = {
    "code": "equalize", "because": "top-1 86.07 -> 41.10 %", "message": "Equalize.", "status": "tried", "helped": True,
    "figure": FIGURE, "config": {"algorithms": [{"method": "cross_layer_equalization"}]},
}  # fmt: skip
UNTRIED = {
    "code": "searched-ranges", "because": "outliers", "message": "Search (not tried).", "status": "untried",
    "config": {"activation": {"calibration": {"method": "mse", "candidates": None}}},
}  # fmt: skip
BY_HAND = {**UNTRIED, "code": "more-calibration-data", "config": {}}


def report(*advice: dict[str, Any]) -> dict[str, Any]:
    return {**make_report().to_json_dict(), "advice": list(advice)}


@pytest.fixture
def advised(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report(TRIED, UNTRIED, BY_HAND)))
    return path


def test_advice_becomes_a_whole_config(quantmill, advised, tmp_path):
    done = quantmill("apply-advice", advised, "--output", "config.json", code=0)
    before = Report.model_validate_json(advised.read_text()).manifest.config
    after = parse_config(json.loads((tmp_path / "config.json").read_text()))
    assert [algorithm.method for algorithm in after.algorithms] == ["cross_layer_equalization"]
    assert after.model_copy(update={"algorithms": ()}) == before.model_copy(update={"algorithms": ()})
    assert "equalize" in done.stdout and "config.json" in done.stdout and "cross_layer_equalization" in done.stdout
    assert quantmill("apply-advice", advised, "--number", "2", "--output", "config.json").returncode == 0
    assert parse_config(json.loads((tmp_path / "config.json").read_text())).activation.calibration.method == "mse"


@pytest.mark.parametrize(
    ("document", "number", "told"),
    [
        (report(TRIED, UNTRIED, BY_HAND), 3, "changes no setting"),
        (report(TRIED, UNTRIED, BY_HAND), 4, "has 3 advice"),
        (report(), 1, "has no advice"),
        ({}, 1, "is not a report"),
    ],
)
def test_what_cannot_be_applied_is_refused(document, number, told, quantmill, tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(document))
    done = quantmill("apply-advice", "r.json", "--number", number, "--output", "config.json", code=1)
    assert told in done.stderr and "hint" in done.stderr
    assert not (tmp_path / "config.json").exists()


def test_a_printed_report_tells_what_helps_and_how_to_apply_it(tmp_path):
    console = Console(file=io.StringIO(), width=200, highlight=False)
    whole = Report.model_validate(report(BY_HAND, TRIED, UNTRIED, BY_HAND))
    print_report(whole, console, report_path=tmp_path / "my report.json")
    text = console.file.getvalue()
    assert "advice 2  equalize: Equalize." in text
    assert "tried: top1 41.1 -> 86.3 % on 438 samples" in text
    assert "not tried" in text and "1 more in the report" in text
    assert f"quantmill apply-advice '{tmp_path}/my report.json' --number 2 --output config.json" in text
