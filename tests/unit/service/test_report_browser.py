"""The page in real Chromium: it loads and runs nothing, can be read light and dark, and fits any screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.contracts.report import Report
from service.reports.html import html
from tests.support import services
from tests.support.browser import Seen, browser_trouble, new_page, running_browser
from tests.support.front import make_report
from tests.support.looks import CONTRAST, OPEN_ALL, STICKING_OUT
from tests.support.reports import full_report, hostile_document

pytestmark = pytest.mark.slow  # starts a browser


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

    def shown(page: str) -> Seen:
        path = tmp_path / "report.html"
        path.write_text(page, encoding="utf-8")
        contexts.append(browser.new_context())
        return new_page(contexts[-1], path.as_uri())

    yield shown
    for context in contexts:
        context.close()


def hostile_report() -> Report:
    return Report.model_validate(hostile_document())


VERDICTS = [partial(full_report, verdict=verdict) for verdict in ("pass", "undecided")]


@pytest.mark.parametrize(
    "report",
    [full_report, *(pytest.param(one, marks=pytest.mark.long) for one in (hostile_report, make_report, *VERDICTS))],
)
def test_a_page_runs_nothing_fits_and_can_be_read(show: Show, report: Callable[[], Report]) -> None:
    seen = show(html(report()))
    page = seen.page
    page.evaluate(OPEN_ALL)
    backs = []
    for width in (360, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(STICKING_OUT, width) == []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate(CONTRAST)
            assert found["seen"] > 50
            assert found["poor"] == [] or report is hostile_report
            backs.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs == ["rgb(246, 247, 249)", "rgb(16, 20, 24)"] * 2
    assert [one.partition("://")[0] for one in seen.requests] == ["file"]
    assert seen.troubles == []
    assert page.evaluate("document.scripts.length + document.images.length") == 0


def test_a_script_that_got_in_would_not_run(show: Show) -> None:
    seen = show(html(full_report()).replace("<main>", "<main><script>document.title = 'run'</script>"))
    assert "Gate failed" in seen.page.title()
    assert any("Content Security Policy" in text for text in seen.troubles)


def test_the_verdict_and_the_cards_come_first_links_lead_to_parts_and_charts_are_drawn(show: Show) -> None:
    page = show(html(full_report())).page
    tops = [page.locator(one).first.bounding_box()["y"] for one in (".verdict .word", "#results", "#findings")]
    assert tops == sorted(tops) and tops[0] < 200
    assert page.locator(".verdict .word").inner_text() == "✖ Gate failed"
    missing = """() => [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))
                 .filter(href => !href.startsWith('#') || !document.getElementById(href.slice(1)))"""
    assert page.evaluate(missing) == [] and page.locator("nav a").count() >= 10
    drawn = page.evaluate("""() => [...document.querySelectorAll('svg.chart')].map(svg => ({
        label: svg.getAttribute('aria-label'), wide: svg.getBoundingClientRect().width,
        bars: svg.querySelectorAll('.bar').length, clipped: svg.querySelectorAll('.clipped').length,
        limits: svg.querySelectorAll('.limit').length}))""")
    histograms = [chart for chart in drawn if chart["bars"]]
    assert len(histograms) == 2
    assert all(0 < chart["clipped"] < chart["bars"] <= 64 and chart["limits"] == 2 for chart in histograms)
    assert all(chart["label"] and chart["wide"] > 200 for chart in drawn)
