"""Charts of whatever figures a report may hold: every coordinate is a number, and marks lie where they belong."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.report import Histogram, Interval, Report
from service.reports import charts
from service.reports.formats import FORMATS, rendered
from tests.support.each import each
from tests.support.reports import full_document

FINITE = st.floats(allow_nan=False, allow_infinity=False)
COORDINATES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points")


def picture(markup: Any) -> ElementTree.Element:
    root = ElementTree.fromstring(str(markup))
    for element in root.iter():
        for key in COORDINATES:
            for number in re.split("[ ,]", element.get(key, "0")):
                assert re.fullmatch(r"-?\d+(\.\d+)?", number), (element.tag, key, number)
    return root


def marks(root: ElementTree.Element, kind: str, attribute: str) -> list[float]:
    return [float(item.get(attribute, "nan")) for item in root.iter() if kind in (item.get("class") or "").split()]


@given(FINITE, FINITE, FINITE, FINITE, st.booleans())
def test_any_figures_can_be_drawn(value: float, low: float, high: float, limit: float, lower: bool) -> None:
    interval = Interval(low=low, high=high, method="wilson", samples=3)
    row = charts.Whisker("got", value, interval, "second")
    picture(charts.whiskers([row], str, "a", limit=limit, lower_limit=lower))


@each(("lower", "holds"), [(False, (2.0, 4.0)), (True, (6.0, 8.0))])
def test_a_value_lies_in_the_band_where_its_condition_holds(lower: bool, holds: tuple[float, ...]) -> None:
    for value in (2.0, 4.0, 6.0, 8.0):
        row = charts.Whisker("", value, None, "second")
        root = picture(charts.whiskers([row], str, "a", limit=5.0, lower_limit=lower))
        (band,) = (item for item in root.iter("rect") if item.get("class") == "allowed")
        begin = float(band.get("x", "nan"))
        (center,) = marks(root, "mark", "cx")
        assert (begin <= center <= begin + float(band.get("width", "nan"))) is (value in holds)


def test_whiskers_end_where_the_interval_does() -> None:
    interval = Interval(low=1.0, high=3.0, method="wilson", samples=3)
    rows = [charts.Whisker("a", 2.0, interval, "first"), charts.Whisker("b", 3.0, None, "second")]
    root = picture(charts.whiskers(rows, str, "a"))
    centers, ends = marks(root, "mark", "cx"), marks(root, "whisker", "x2")
    assert ends[0] == pytest.approx(centers[1])  # 3 is 3 in either row
    assert centers[0] == pytest.approx((min(ends) + max(ends)) / 2)


@given(st.lists(st.integers(), min_size=1, max_size=9), FINITE, FINITE, st.none() | FINITE, st.none() | FINITE)
def test_any_histogram_can_be_drawn(
    counts: list[int], low: float, high: float, clip_low: float | None, clip_high: float | None
) -> None:
    figures = Histogram(minimum=low, maximum=high, counts=tuple(counts), clip_low=clip_low, clip_high=clip_high)
    picture(charts.histogram(figures, "a"))


def test_bars_beyond_the_clip_lines_are_hollow() -> None:
    figures = Histogram(minimum=0.0, maximum=4.0, counts=(1, 10, 100, 1000), clip_low=1.0, clip_high=3.0)
    root = picture(charts.histogram(figures, "a"))
    kinds = [item.get("class") for item in root.iter("rect")]
    assert kinds == ["bar clipped", "bar", "bar", "bar clipped"]
    tall = marks(root, "bar", "height")
    assert tall == sorted(tall)
    lines = [item.get("x1") for item in root.iter("line") if item.get("class") == "limit"]
    begins = marks(root, "bar", "x")
    assert [float(x or "nan") for x in lines] == [pytest.approx(begins[1]), pytest.approx(begins[3])]


@given(st.floats(-1e300, 1e300), st.sampled_from(["ratio", "float_ms", "quantized_ms"]))
def test_any_figure_of_latency_can_be_told(value: float, key: str) -> None:
    document = full_document()
    document["latency"][key] = value
    report = Report.model_validate(document)
    for form in FORMATS:
        assert rendered(report, form)


def test_a_training_of_one_epoch_has_no_curve() -> None:
    document = full_document()
    training = document["algorithms"][2]["training"]
    training["epochs"] = training["epochs"][:1]
    assert charts.training_curves(Report.model_validate(document).algorithms[2].training) == []  # type: ignore[arg-type]
