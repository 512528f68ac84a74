"""CSV of layers, read back by Python's reader: whole, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from service.contracts.report import Report
from service.reports.layers_csv import layers_csv
from tests.support.each import each
from tests.support.front import make_report
from tests.support.reports import HOSTILE, full_report, hostile_document, large_report, layer


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
