"""The page of a report, read by a parser of HTML: what it says, and that nobody's name becomes a part of it."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.report import GateClause, Histogram, Interval, Report
from service.reports import charts
from service.reports.figures import NAME_CHARACTERS, name, shown
from service.reports.formats import FORMATS, rendered
from service.reports.html import MOST_BYTES, SECURITY_POLICY, html
from service.reports.page_pictures import gate_scale
from service.reports.verdict import is_lower_limit
from tests.support.each import each
from tests.support.front import make_report
from tests.support.reports import full_document, full_report, hostile_document, interval, large_report, layer

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Text, elements and attributes of a page; fails where an element is not closed."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


def page_of(**changes: Any) -> Page:
    return Page(html(full_report(**changes)))


# fmt: off
FACTS = (
    "Gate failed", "1 of 4 conditions of the gate failed, 1 is undecided on this data.",
    "Fix the critical finding before you use the model or its figures.",
    "Critical: The float model reaches 10.2 %, guessing would reach 10 %.", "Check the preprocessing.",
    "No statement about accuracy is possible until this is fixed.", "float-model-at-chance", "metric: top1",
    "File size 73.4 % smaller 9.95 MiB → 2.65 MiB", "Latency 1.25x faster 11.00 ms → 8.80 ms",
    "95 % CI: 1.10x to 1.39x faster.", "40 runs of either model in turn",
    "Other processes used 61 % of the CPU meanwhile", "Top-1 accuracy −0.46 points (not significant) 86.07 % → 85.62 %",
    "5 of 438 samples from right to wrong, 3 from wrong to right", "was 90 % or more on 2 of the lost ones",
    "95 % CI: −2.00 to +1.10 points: not significant.", "p = 0.73",
    "Chance level: 0.10 %.", "95 % CI: 82.50 to 89.00 %", "+0.125 (worse)", "lower is better",
    "+0.1 to +0.15: significantly worse.", "Top-1 agreement 95.43 %", "SQNR 21.40 dB.",
    "Largest error contribution /features/0 Conv This layer: 61.2 % of all error Cause: ",
    "Try first Keep the two worst layers in float. top1 85.62 % → 86.01 %",
    "Largest accuracy drop: Top-1 accuracy, −1.00 points", "The interval of the drop holds the limit.",
    "−0.46 points 95 % CI: −2.00 to +1.10 points", "About 5,200 samples would decide it.",
    "Required confidence: 95 %.", "2.65 MiB", "The quantized file is at most 3.81 MiB (4,000,000 bytes)",
    "? undecided", "✖ failed", "✔ passed", "Output SQNR is at least 20.00 dB", "0.95x 95 % CI: 0.90 to 1.02",
    "Keep the two worst layers in float.", "Two layers fall by 9 dB.", "Tried: helped.",
    "top1 85.62 % → 86.01 % on 438 samples, in 12 s.", '"exclude": [ "/features/0", "/classifier" ]',
    "Not tried.", "No configuration change helps here.", "class 3", "91.25", "88.75",
    "3 of 4 nodes quantized; 1 more node has no floating-point output.", "fused with /features/1",
    "3.38 KiB → 864 B", "18.5 %", "adaround +3.2 dB", "weights int8, activations uint8", "0.125 % clipped",
    "its output needs more than 8 bits near 0", "softmax-range", "its input is constant", "its scale is too small",
    "adaround: ✔ kept", "cross_layer_equalization: ✖ not kept", "it made the network worse", "made-worse",
    "Without: 19.00 dB, top1 84.5; with: 21.50 dB, top1 85.5, on 64 samples.", "−8 to 8", "−2 to 2",
    "12 → 1.5", "25.0 %", "epoch 3 selected", "Stopped by: patience", "3 (selected)", "22.00 dB",
    "int8 + adaround (chosen) (Pareto-optimal)", "Search ended: everything was tried. Goal met.",
    "Duration 15 s, peak memory 495.91 MiB.", "weight scales raised so that the int32 bias fits",
    "27 nodes folded into the linear node before them", "1 of 2 passes applied", "9d9d9d", "aaaaaa",
    "onnxruntime 1.31.1", '"max_size_bytes": 4000000', "7, 2",
)
# fmt: on


@pytest.fixture(scope="module")
def full_page() -> Page:
    return page_of()


@each("fact", FACTS)
def test_the_page_tells(full_page: Page, fact: str) -> None:
    assert fact in full_page.text


def test_the_order_is_verdict_cards_findings_gate_advice_and_the_rest(full_page: Page) -> None:
    ids = [attributes["id"] for _, attributes in full_page.elements if "id" in attributes]
    assert ids == ["results", "findings", "gate", "fallback", "kernels", "causes", "advice", "accuracy", "latency",
                   "layers", "float", "algorithms", "run", "provenance", "configuration", "glossary"]  # fmt: skip
    assert full_page.text.index("Gate failed") < full_page.text.index("Findings")


@each(
    ("verdict", "holds", "word", "sentence"),
    [
        ("pass", (True, True), "Gate passed", "All 2 conditions of the gate passed."),
        ("pass", (True,), "Gate passed", "The condition of the gate passed."),
        ("fail", (False, True), "Gate failed", "1 of 2 conditions of the gate failed."),
        ("fail", (False, False, True), "Gate failed", "2 of 3 conditions of the gate failed."),
        (
            "fail",
            (None, True),
            "Gate failed",
            "1 of 2 conditions of the gate is undecided on this data; the gate counts",
        ),
        ("undecided", (None, True), "Gate undecided", "1 of 2 conditions of the gate is undecided on this data."),
        ("none", (), "Succeeded, no gate", "Accuracy kept: no significant change ("),
    ],
)
def test_the_headline(verdict: str, holds: tuple[bool | None, ...], word: str, sentence: str) -> None:
    gate = [{"clause": "min_sqnr_db", "wanted": 1.0, "got": 2.0, "holds": value} for value in holds]
    page = page_of(verdict=verdict, gate=gate, findings=[])
    assert f"{word} {sentence}" in page.text


def test_the_headline_of_a_collapse_without_a_gate() -> None:
    why = "collapsed: top-1 2.05 % is near chance level (0.10 %)"
    gate = [{"clause": "sanity", "metric": "top1", "wanted": 35.0, "got": 2.05, "holds": False, "why": why}]
    page = page_of(verdict="fail", gate=gate, findings=[])
    assert "Collapsed Top-1 2.05 % is near chance level (0.10 %)." in page.text
    assert "of the gate failed" not in page.text
    assert "Fix the critical" not in page.text


@each(
    ("low", "high", "words"),
    [
        (0.4, 2.0, "95 % CI: −2.00 to −0.40 points: significantly worse."),
        (-2.0, -0.4, "95 % CI: +0.40 to +2.00 points: significantly better."),
        (-0.4, 2.0, "95 % CI: −2.00 to +0.40 points: not significant."),
    ],
)
def test_an_interval_in_words(low: float, high: float, words: str) -> None:
    metric = {**full_document()["metrics"][0], "drop": (low + high) / 2, "drop_interval": interval(low, high)}
    assert words in page_of(metrics=[metric]).text


@each(
    ("got", "words"),
    [(0.5, "−0.50 points"), (-0.25, "+0.25 points"), (0.0, "no change"), (None, "Not measured. –")],
)
def test_a_drop_in_words(got: float | None, words: str) -> None:
    gate = [{"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": got, "holds": got is not None}]
    assert f"max_drop {words}" in page_of(gate=gate).text


def test_what_is_not_sure_is_not_told_as_sure() -> None:
    document = full_document()
    document["latency"]["verdict"] = "undecided"
    document["fidelity"]["source"] = "random"
    text = Page(html(Report.model_validate(document))).text
    assert "Latency no significant difference" in text and "faster: not significant." in text
    assert "random data, which shows nothing about accuracy" in text


@each(
    ("clause", "got", "wanted", "words"),
    [
        ("max_drop", 0.23, 0.5, "Passed by the measured value; a drop of up to 1.59 points cannot be excluded."),
        ("max_drop", 0.23, 2.0, ""),
        ("min_value", 84.0, 1.0, "Passed by the measured value; the confidence interval also holds values that fail."),
    ],
)
def test_a_condition_that_passed_by_luck_perhaps(clause: str, got: float, wanted: float, words: str) -> None:
    one = {"clause": clause, "metric": "top1", "wanted": wanted, "got": got, "interval": interval(-1.12, 1.59)}
    text = page_of(verdict="pass", gate=[{**one, "holds": True}]).text
    assert (words or "Passed by the measured value") in text if words else "Passed by" not in text
    assert "limit −0.50 points" in text or wanted != 0.5


NEVER = {"script", "img", "link", "iframe", "object", "embed", "form", "base", "input", "foreignobject"}


@pytest.mark.parametrize("report", [make_report(), full_report(), Report.model_validate(hostile_document())])
def test_the_page_is_well_made_and_stands_alone(report: Report) -> None:
    source = html(report)
    page = Page(source)
    assert not page.tags & NEVER
    for tag, attributes in page.elements:
        assert not any(key.startswith("on") or key in {"src", "style", "srcdoc", "action"} for key in attributes), tag
        assert attributes.get("href", "#").startswith("#")
    policy = [item["content"] for tag, item in page.elements if item.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [SECURITY_POLICY]
    assert "script-src" not in SECURITY_POLICY and "default-src 'none'" in SECURITY_POLICY
    assert len(source.encode()) < MOST_BYTES
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(item.get("scope") in ("col", "row") for tag, item in page.elements if tag == "th")
    pictures = [item for tag, item in page.elements if tag == "svg"]
    assert all(item.get("aria-label") or item.get("aria-hidden") == "true" for item in pictures)
    assert ("html", {"lang": "en"}) in page.elements


def test_what_cannot_be_seen_is_shown_as_its_escape() -> None:
    text = page_of(layers=[layer("\u202eab\x00c\nd\ud800\u2066", sqnr_db=1.0)]).text
    assert "\\u202eab\\x00c\\nd\\ud800\\u2066" in text


@given(st.text(st.characters(), min_size=1, max_size=60).filter(lambda text: len(shown(text)) <= NAME_CHARACTERS))
def test_any_name_stands_there_as_it_is_shown(text: str) -> None:
    source = html(full_report(layers=[layer(text, op="Conv", sqnr_db=1.0)], algorithms=[]))
    source.encode()
    page = Page(source)
    assert " ".join(shown(text).split()) in page.text
    assert "script" not in page.tags


@given(st.text(min_size=0, max_size=400), st.integers(8, 60))
def test_a_long_name_keeps_both_ends(text: str, most: int) -> None:
    told = name(text, most)
    assert len(told) <= most
    assert told.isprintable()
    if len(shown(text)) <= most:
        assert told == shown(text)


@pytest.mark.parametrize("characters", [40, pytest.param(5000, marks=pytest.mark.long)])
def test_large_models_stay_below_two_megabytes(characters: int) -> None:
    source = html(large_report(1000, characters))
    assert len(source.encode()) < 2_000_000
    assert source.count('class="chart"') < 40
    assert "are in the JSON report." in source


@pytest.mark.slow
def test_names_that_grow_when_they_are_escaped_stay_below_two_megabytes() -> None:
    rows = [layer('"' * 5000, sqnr_db=float(k), nodes=['"' * 500] * 9, gain={"a": 1.0}) for k in range(1000)]
    left = [layer('"' * 500, reason=f"{k}" + '"' * 5000) for k in range(200)]
    source = html(full_report(layers=[*rows, *left], notes=['"' * 5000] * 300))
    assert len(source.encode()) < 2_000_000
    assert "more layers are in the JSON report" in Page(source).text


# --- charts of whatever figures a report may hold: every coordinate is a number, and marks lie where they belong ---

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


@each(
    ("clause", "lower"),
    [
        ({"clause": "sanity", "metric": "top1", "wanted": 43.15, "got": 2.05, "holds": False}, True),
        ({"clause": "sanity", "metric": "sqnr_db", "wanted": 0.0, "got": -1.0, "holds": False}, True),
        ({"clause": "runtime_agreement", "wanted": 30.0, "got": 4.0, "holds": False}, True),
        ({"clause": "min_value", "metric": "top1", "wanted": 80.0, "got": 85.0, "holds": True}, True),
        ({"clause": "min_sqnr_db", "wanted": 20.0, "got": 12.0, "holds": False}, True),
        ({"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 2.0, "holds": False}, False),
        ({"clause": "max_drop", "metric": "rmse", "wanted": 1.0, "got": 0.5, "holds": True}, False),
        ({"clause": "budget.max_size_bytes", "wanted": 4e6, "got": 3e6, "holds": True}, False),
        ({"clause": "goal", "metric": "sqnr", "wanted": 20.0, "got": 25.0, "holds": True}, True),
        ({"clause": "goal", "metric": "top1", "wanted": 1.0, "got": 2.0, "holds": False}, False),
    ],
)
def test_the_band_of_a_condition_holds_what_passes(clause: dict[str, Any], lower: bool) -> None:
    found = GateClause.model_validate(clause)
    assert is_lower_limit(found) is lower
    root = picture(gate_scale(found, full_report()))
    (band,) = (item for item in root.iter("rect") if item.get("class") == "allowed")
    begin, (center,) = float(band.get("x", "nan")), marks(root, "mark", "cx")
    assert (begin <= center <= begin + float(band.get("width", "nan"))) is found.holds


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
