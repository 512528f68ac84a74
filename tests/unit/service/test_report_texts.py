"""Reports as Markdown, JUnit XML and CSV, read back by parsers: what they say, and that names are text alone."""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from service.contracts.report import Report
from service.reports.figures import name, shown
from service.reports.junit import junit
from service.reports.layers import layers_csv
from service.reports.markdown import code, escaped, markdown, table
from tests.support.each import each
from tests.support.front import make_report
from tests.support.reports import HOSTILE, full_document, full_report, hostile_document, large_report, layer

# Reads Markdown as a forge does, with HTML and tables.
READER = MarkdownIt("commonmark", {"html": True}).enable("table")
# A bar that GFM takes for the end of a cell.
BAR = re.compile(r"(?<!\\)\|")


def unescaped(text: str) -> str:
    """As a reader of the rendered page sees it, without spaces of no width."""
    plain = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)
    for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        plain = plain.replace(entity, letter)
    return plain.replace("\u200b", "")


# fmt: off
FACTS = (
    "# ❌ Quantization: Gate failed", "1 of 4 conditions of the gate failed", "Fix the critical finding",
    "Critical**: The float model reaches 10.2 %", "Check the preprocessing.", "73.4 % smaller",
    "Largest error contribution: /features/0 (Conv), 61 % of all error. Cause: ", "Try first: Keep the two",
    "5 of 438 samples from right to wrong, 3 from wrong to right", "❔ undecided", "❌ failed",
    "About 5,200 samples would decide it.", "Keep the two worst layers in float.", '"/classifier"',
    "3 of 4 nodes quantized", "1 node left in float", "its output needs more than 8 bits near 0",
    "weight scales raised",
    "1 of 2 regions tried without Q/DQ pairs, 1 removed.",
    "| returned | quantized, 17 nodes in float | 0.77x (0.73 to 0.79) | 3.15 MiB | all met |",
    "|  | float model | 1.00x | 8.58 MiB | not measured |",
    "| com.microsoft.MatMulNBits, level 4 | 2.25 ms | 0.56x (0.40 to 0.60) | 29.50 dB |",
    "`9d9d9d9d9d9d`", "| `/features/0` | `Conv` | 61.2 % | 12.50 dB |",
)
# fmt: on


def test_the_document_tells() -> None:
    text = unescaped(markdown(full_report()))
    for fact in FACTS:
        assert fact in text


def test_verdict_results_and_findings_come_first() -> None:
    titles = re.findall(r"^#+ (.*)$", markdown(full_report()), re.MULTILINE)
    assert titles == [
        "❌ Quantization: Gate failed", "Results", "Findings", "Gate", "Fallback", "Matrix product kernels", "Accuracy",
        "Causes of error", "Advice", "Layers", "Notes",
    ]  # fmt: skip


def test_what_is_not_there_is_left_out() -> None:
    text = markdown(make_report())
    assert "## Gate" not in text and "## Advice" not in text
    assert "➖ Quantization: Succeeded, no gate" in text


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_a_table_keeps_its_columns_whatever_stands_in_it(cells: list[str]) -> None:
    row = table([escaped("head")] * len(cells), [[escaped(cell) for cell in cells], [code(cell) for cell in cells]])
    lines = row.split("\n")
    assert len(lines) == 4
    for line in lines:
        assert len(BAR.findall(re.sub(r"\\\\", "", line))) == len(cells) + 1


@given(st.text(max_size=80))
def test_escaped_text_reads_as_it_is_shown(text: str) -> None:
    read = unescape(READER.renderInline(escaped(text)))
    assert read.replace("\u200b", "").strip() == shown(text).strip()


@given(st.text(min_size=1, max_size=60) | st.text(st.sampled_from("`|a \\<"), min_size=1, max_size=20))
def test_code_reads_as_it_is_shown(text: str) -> None:
    (cell,) = re.findall("<td>(.*)</td>", READER.render(table(["head"], [[code(text)]])))
    assert unescape(cell).removeprefix("<code>").removesuffix("</code>").strip() == name(text).strip()


def test_nobody_is_called_nothing_is_linked_and_no_line_begins_a_list() -> None:
    for text, broken_up in (
        ("@all", "@all"),
        ("see #12", "#12"),
        ("!7", "!7"),
        ("https://x.example", "https://"),
        ("www.x.example", "www."),
    ):
        assert broken_up not in escaped(text)
    for text in ("- a", "+ a", "1. a", "2) a", "# a", "=== a"):
        assert not re.match(r"[-+#=]|\d+[.)]", escaped(text))
        assert unescaped(escaped(text)) == text


def test_hostile_names_open_no_element() -> None:
    text = markdown(Report.model_validate(hostile_document()))
    text.encode()
    tokens = [part for token in READER.parse(text) for part in (token, *(token.children or ()))]
    raw = {part.content.strip() for part in tokens if part.type in ("html_inline", "html_block")}
    summary = re.compile(r"<details><summary>[\w ]+</summary>|</details>|<sub>.*")
    assert {piece for piece in raw if not summary.fullmatch(piece)} <= {"<sub>", "</sub>"}
    assert not {part.type for part in tokens} & {"link_open", "image", "s_open", "em_open"}
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(tables) > len(HOSTILE)


def test_fences_of_fragments_are_longer_than_what_they_hold() -> None:
    advice = {**full_document()["advice"][0], "config": {"note": "```` not the end"}}
    text = markdown(full_report(advice=[advice], layers=[layer("``", error_percent=1.0)]))
    assert "`````json" in text
    assert text.count("``` `` ```") == 1
    assert len(markdown(large_report(300)).encode()) < 50_000


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
    assert broken["type"] == "max_latency_ratio-broken" and "0.95x" in broken["message"]
    assert [case.attrib["name"] for case in gate.iter("testcase")][1].startswith("The quantized file is at most")


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


def rows(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(layers_csv(report), newline=""), strict=True))


def test_every_layer_has_a_row_with_its_figures() -> None:
    first, second, third, fourth = rows(full_report())
    assert first["name"] == "/features/0"
    assert first["nodes"] == "/features/0 /features/1"
    assert (float(first["sqnr_db"]), int(first["weight_bytes"]), float(first["latency_percent"])) == (12.5, 864, 18.5)
    assert float(first["weights_clipped_percent"]) == 0.125
    assert float(first["gain_db_adaround"]) == 3.25
    assert (second["activation_reason_code"], second["bias_reason_code"]) == ("constant-input", "bias-scale")
    assert (third["reason_code"], third["sqnr_db"]) == ("softmax-range", "")
    assert fourth["op"] == "Shape"


@each("text", ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "\n=1"])
def test_formulas_are_texts(text: str) -> None:
    report = full_report(layers=[layer(text, op=text, sqnr_db=-3.5, gain={text: 1.0})])
    (row,) = rows(report)
    assert row["name"] == row["op"] == f"'{text}"
    assert row["sqnr_db"] == "-3.5", "a figure of ours stays a number"
    assert f"gain_db_{text}" in next(csv.reader(io.StringIO(layers_csv(report), newline="")))
    assert layers_csv(make_report()).count("\r\n") == 2


def test_hostile_names_stay_in_their_cells() -> None:
    report = Report.model_validate(hostile_document())
    found = rows(report)
    assert len(found) == 2 * len(HOSTILE)
    assert all(None not in row and None not in row.values() for row in found)
    layers_csv(report).encode()


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_names_come_back_whole(text: str) -> None:
    (row,) = rows(full_report(layers=[layer(text)]))
    assert row["name"].removeprefix("'") == text.removeprefix("'")


def test_nothing_is_left_out_of_a_large_model() -> None:
    assert len(rows(large_report(400))) == 800
