"""The page in real Chromium: it loads and runs nothing, can be read light and dark, and fits any screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from service.contracts.report import Report
from service.reports.html import html
from tests.support import services
from tests.support.browser import browser_trouble, running_browser
from tests.support.front import make_report
from tests.support.looks import CONTRAST, OPEN_ALL, STICKING_OUT
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reports import full_report, hostile_document, large_report

pytestmark = pytest.mark.slow  # starts a browser


@dataclass
class Seen:
    """A page, and all that it did beside being shown."""

    page: Any
    requests: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


Show = Callable[..., Seen]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    services.require(browser_trouble())
    with running_browser() as program:
        yield program


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a report as a file, as a user would; scripts may run, if there were any."""
    contexts = []

    def shown(report: Report, *, scheme: str = "light", width: int = 1400) -> Seen:
        path = tmp_path / "report.html"
        path.write_text(html(report), encoding="utf-8")
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE_SECONDS)
        seen = Seen(context.new_page())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", lambda message: seen.troubles.append(f"console: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.troubles.append(f"error: {error}"))
        seen.page.on("dialog", lambda dialog: (seen.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        seen.page.goto(path.as_uri(), wait_until="load")
        return seen

    yield shown
    for context in contexts:
        context.close()


def small_report() -> Report:
    return make_report()


def hostile_report() -> Report:
    return Report.model_validate(hostile_document())


REPORTS = (full_report, hostile_report, small_report)


@pytest.mark.parametrize("report", REPORTS)
def test_the_page_loads_and_runs_nothing(show: Show, report: Callable[[], Report]) -> None:
    seen = show(report())
    seen.page.evaluate(OPEN_ALL)
    assert len(seen.requests) == 1
    assert seen.requests[0].startswith("file://")
    assert seen.troubles == []
    assert seen.page.evaluate("document.scripts.length") == 0
    assert seen.page.evaluate("document.images.length") == 0
    inside = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert seen.page.evaluate(inside) == []


def test_a_script_that_got_in_would_not_run(show: Show, browser: Any, tmp_path: Path) -> None:
    page = html(full_report()).replace("<main>", "<main><script>document.title = 'run'</script>")
    (tmp_path / "forged.html").write_text(page, encoding="utf-8")
    context = browser.new_context()
    opened = context.new_page()
    refused = []
    opened.on("console", lambda message: refused.append(message.text))
    opened.goto((tmp_path / "forged.html").as_uri())
    title = opened.title()
    context.close()
    assert "FAIL" in title
    assert any("Content Security Policy" in text for text in refused)


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("report", REPORTS)
def test_nothing_sticks_out_of_the_page(show: Show, report: Callable[[], Report], width: int) -> None:
    seen = show(report(), width=width)
    seen.page.evaluate(OPEN_ALL)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.page.evaluate(STICKING_OUT, width) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", [full_report, small_report])
def test_every_text_can_be_read(show: Show, report: Callable[[], Report], scheme: str) -> None:
    seen = show(report(), scheme=scheme)
    seen.page.evaluate(OPEN_ALL)
    found = seen.page.evaluate(CONTRAST)
    assert found["seen"] > 50
    assert found["poor"] == []


@pytest.mark.parametrize("verdict", ["pass", "fail", "undecided", "none"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_verdict_can_be_read(show: Show, verdict: str, scheme: str) -> None:
    seen = show(full_report(verdict=verdict), scheme=scheme, width=360)
    assert seen.page.evaluate(CONTRAST)["poor"] == []


def test_light_and_dark_differ(show: Show) -> None:
    backs, pictures = [], []
    for scheme in ("light", "dark"):
        seen = show(full_report(), scheme=scheme)
        backs.append(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        pictures.append(seen.page.screenshot())
    assert backs == ["rgb(246, 247, 249)", "rgb(16, 20, 24)"]
    assert pictures[0] != pictures[1]


def test_the_verdict_and_the_findings_come_before_all_figures(show: Show) -> None:
    seen = show(full_report())
    tops = {
        name: seen.page.locator(place).first.bounding_box()["y"]
        for name, place in (("verdict", ".verdict .word"), ("findings", "#findings"), ("gains", "#gains"))
    }
    assert tops["verdict"] < tops["findings"] < tops["gains"]
    assert tops["verdict"] < 200
    assert seen.page.locator(".verdict .word").inner_text() == "✖ FAIL"
    sizes = seen.page.evaluate(
        "() => ['.verdict .word', 'h2', 'p'].map(p => parseFloat(getComputedStyle(document.querySelector(p)).fontSize))"
    )
    assert sizes[0] > sizes[1]


def test_links_of_the_page_lead_to_its_parts(show: Show) -> None:
    seen = show(full_report())
    missing = """() => [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))
                 .filter(href => !href.startsWith('#') || !document.getElementById(href.slice(1)))"""
    assert seen.page.evaluate(missing) == []
    assert seen.page.locator("nav a").count() >= 10


def test_charts_draw_what_they_are_given(show: Show) -> None:
    seen = show(full_report())
    drawn = seen.page.evaluate("""() => [...document.querySelectorAll('svg.chart')].map(svg => ({
        label: svg.getAttribute('aria-label'), wide: svg.getBoundingClientRect().width,
        bars: svg.querySelectorAll('.bar').length, clipped: svg.querySelectorAll('.clipped').length,
        limits: svg.querySelectorAll('.limit').length}))""")
    histograms = [chart for chart in drawn if chart["bars"]]
    assert len(histograms) == 2
    assert all(0 < chart["clipped"] < chart["bars"] <= 64 and chart["limits"] == 2 for chart in histograms)
    assert all(chart["label"] for chart in drawn)
    assert all(chart["wide"] > 200 for chart in drawn)


def test_a_thousand_layers_open(show: Show) -> None:
    seen = show(large_report(1000))
    assert seen.page.locator("#layers tbody th.name").count() == 1000
    assert seen.troubles == []
