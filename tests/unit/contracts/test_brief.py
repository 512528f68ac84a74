"""Results in a prompt and in a notebook: a few lines, a small table, nothing that a model's names could break."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from service.contracts.brief import Brief
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Report
from service.jobs.schemas import JobListed, JobOut
from service.models.schemas import ModelOut
from tests.support.front import make_report


def test_a_report_is_a_few_lines() -> None:
    assert repr(make_report("fail")).splitlines() == [
        "Report:",
        "  verdict  fail",
        "  top1     90 -> 89.5 %, -0.50 points",
        "  size     75.0 % smaller",
        "  SQNR     30.00 dB",
        "  nodes    none quantized",
    ]
    assert str(make_report()) == repr(make_report())


def test_critical_findings_are_a_row() -> None:
    document = make_report().to_json_dict()
    document["findings"] = [
        {"code": "float-metric-at-chance", "severity": "critical", "message": "10 %"},
        {"code": "few-samples", "severity": "warning", "message": "8 samples"},
    ]
    report = Report.model_validate(document)
    assert repr(report).splitlines()[2] == "  findings  1 critical: float-metric-at-chance"
    assert "1 critical: float-metric-at-chance" in report._repr_html_()


def test_a_whole_report_of_a_large_model_is_no_longer() -> None:
    document = make_report().to_json_dict()
    document["layers"] = [{"name": f"layer{number}", "op": "Conv", "sqnr_db": 20.0} for number in range(1000)]
    assert len(repr(Report.model_validate(document))) < 500


def test_a_notebook_shows_a_table_and_no_markup_of_names() -> None:
    document = make_report().to_json_dict()
    document["metrics"][0]["name"] = "<script>x</script>"
    shown = Report.model_validate(document)._repr_html_()
    assert shown.startswith("<table><caption>Report</caption>")
    assert "<script>" not in shown and "&lt;script&gt;" in shown


@pytest.mark.parametrize("kind", [Report, EvaluationReport, JobListed, JobOut, ModelOut])
def test_what_clients_get_is_brief(kind: Any) -> None:
    assert issubclass(kind, Brief)
    assert kind.__repr__ is Brief.__repr__ and kind.__str__ is Brief.__str__


def test_a_traceback_ends_with_the_hint() -> None:
    error = InvalidConfigError("no such preset", hint="Choose another one.")
    assert traceback.format_exception_only(error)[-1].strip() == "hint: Choose another one."
