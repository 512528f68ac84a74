"""JUnit XML for CI, read back by a parser: its structure, its counts, and what counts as not passed."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.report import Report
from service.reports.junit import junit
from service.reports.names import shown
from tests.support.front import make_report
from tests.support.reports import HOSTILE, full_document, full_report, hostile_document

OUTCOMES = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def suites(report: Report) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(junit(report).encode())
    assert root.tag == "testsuites"
    for element in (root, *root):
        assert int(element.attrib["tests"]) == len(list(element.iter("testcase"))) > 0
        for attribute, tag in OUTCOMES.items():
            assert int(element.attrib[attribute]) == len(list(element.iter(tag)))
        assert float(element.attrib["time"]) >= 0
    for case in root.iter("testcase"):
        assert case.attrib["classname"]
        assert case.attrib["name"]
        outcomes = [child for child in case if child.tag in OUTCOMES.values()]
        assert len(outcomes) <= 1
        assert all(child.attrib["message"] for child in outcomes)
    return {suite.attrib["name"]: suite for suite in root}


def outcomes(suite: ElementTree.Element) -> list[str]:
    return [
        next((child.tag for child in case if child.tag != "system-out"), "passed") for case in suite.iter("testcase")
    ]


@pytest.mark.parametrize(("on_undecided", "first"), [("undecided", "skipped"), ("fail", "error")])
def test_every_clause_is_a_case(on_undecided: str, first: str) -> None:
    document = full_document()
    document["manifest"]["config"]["evaluation"]["gate"]["on_undecided"] = on_undecided
    gate = suites(Report.model_validate(document))["gate"]
    assert outcomes(gate) == [first, "passed", "failure", "passed"]
    undecided = next(gate.iter(first)).attrib["message"]
    assert "The interval of the drop holds the limit." in undecided and "About 5,200 samples" in undecided
    broken = next(gate.iter("failure")).attrib
    assert broken["type"] == "max_latency_ratio-broken" and "0.95×" in broken["message"]
    assert [case.attrib["name"] for case in gate.iter("testcase")][1].startswith("The quantized file takes at most")


def test_findings_and_figures_are_told_and_without_a_gate_nothing_passes() -> None:
    told = suites(full_report())
    findings = told["findings"]
    assert outcomes(findings) == ["failure"]
    failure = next(findings.iter("failure"))
    assert failure.attrib["type"] == "float-model-at-chance"
    assert failure.attrib["message"].startswith("The float model reaches 10.2 %")
    text = findings.findtext("system-out") or ""
    assert "warning [few-samples]" in text and "info [same-samples]" in text
    figures = {item.attrib["name"]: item.attrib["value"] for item in told["gate"].iter("property")}
    known = {"verdict": "fail", "quantized.top1": "85.62", "quantized.size_bytes": "2781034"}
    assert figures.items() >= known.items()
    small = suites(make_report())
    assert (outcomes(small["gate"]), outcomes(small["findings"])) == (["skipped"], ["passed"])


def test_hostile_names_are_text() -> None:
    found = suites(Report.model_validate(hostile_document()))
    assert len(list(found["gate"].iter("testcase"))) == len(HOSTILE)
    tags = {element.tag for suite in found.values() for element in suite.iter()}
    assert tags == {"testsuite", "properties", "property", "testcase", "skipped", "failure", "system-out"}


@given(st.text(max_size=60))
def test_any_text_can_be_read_back(text: str) -> None:
    finding: dict[str, Any] = {"code": "x", "severity": "critical", "message": text + ".", "hint": text}
    report = Report.model_validate(full_document(findings=[finding], summary=text))
    failure = next(suites(report)["findings"].iter("failure"))
    assert failure.attrib["message"] == shown(f"{text}. {text}".strip())
