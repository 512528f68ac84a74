"""The drawing of a graph in real Chromium: moved and zoomed by buttons and keys, nodes told without a reload."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.dashboard.conftest import Open, Place
from tests.support.graphs import chain, job, large_job
from tests.support.reports import full_report

pytestmark = pytest.mark.slow  # starts a browser and a service
NODES = ["/features/0", "/features/1", "/features/2", "/softmax", "/shape"]


@pytest.fixture(scope="module")
def small(place: Place) -> str:
    """Path of a graph of five nodes."""
    return f"/jobs/{job(place.front, full_report(), chain(NODES))}/graph"


def seen_part(page: Any) -> list[float]:
    """Left, top, width and height of what is seen of the drawing."""
    return [float(one) for one in page.locator("svg.graph").get_attribute("viewBox").split()]


def test_buttons_and_keys_zoom_alike(open_page: Open, place: Place) -> None:
    tall = job(place.front, full_report(), chain([f"/features/{k}" for k in range(30)]))
    seen = open_page(f"/jobs/{tall}/graph")
    page, frame = seen.page, seen.page.locator("#frame")
    page.get_by_role("button", name="1:1").click()
    whole = seen_part(page)
    assert whole[2:] == [frame.evaluate("one => one.clientWidth"), frame.evaluate("one => one.clientHeight")]
    page.get_by_role("button", name="Zoom in").click()
    near = seen_part(page)
    assert near[2] == pytest.approx(whole[2] / 1.25)
    # what is in the middle stays there
    assert near[0] + near[2] / 2 == pytest.approx(whole[0] + whole[2] / 2)
    page.get_by_role("button", name="Zoom out").click()
    assert seen_part(page) == pytest.approx(whole)
    frame.focus()
    page.keyboard.press("+")
    assert seen_part(page) == pytest.approx(near)
    page.keyboard.press("-")
    assert seen_part(page) == pytest.approx(whole)
    page.get_by_role("button", name="Fit").click()
    fitted = seen_part(page)
    frame.focus()
    page.keyboard.press("1")
    assert seen_part(page)[2:] == whole[2:] != fitted[2:]
    page.keyboard.press("0")
    assert seen_part(page) == fitted
    assert fitted[3] >= page.locator("svg.graph").evaluate("one => one.getBBox().height")
    # arrow keys move what is near within its bounds
    page.keyboard.press("1")
    before = seen_part(page)
    page.keyboard.press("ArrowDown")
    below = seen_part(page)
    assert below[1] > before[1] and below[2:] == before[2:]
    page.keyboard.press("ArrowUp")
    assert seen_part(page) == pytest.approx(before)
    for _ in range(60):
        page.keyboard.press("ArrowUp")
    assert seen_part(page)[1] == 0
    assert seen.refused() == [] and seen.troubles == []


def test_a_click_on_a_node_tells_its_facts_without_a_reload(open_page: Open, small: str) -> None:
    seen = open_page(small)
    page, panel = seen.page, seen.page.locator("#node")
    page.evaluate("window.stays = true")
    box = page.locator("svg.graph a.box").filter(has_text="/features/2")
    box.click()
    panel.get_by_role("heading", name="/features/2").wait_for()
    assert "25.0" in panel.inner_text() and "t2" in panel.inner_text()
    assert box.get_attribute("aria-current") == "true"
    assert page.url.endswith("node=%2Ffeatures%2F2#node")
    assert page.evaluate("document.activeElement.id") == "node"
    # by the keyboard, and from the table
    page.locator("svg.graph a.box").filter(has_text="/softmax").focus()
    page.keyboard.press("Enter")
    panel.get_by_role("heading", name="/softmax").wait_for()
    page.get_by_role("region", name="Table of nodes").get_by_role("link", name="/shape").click()
    panel.get_by_role("heading", name="/shape").wait_for()
    assert page.locator("svg.graph [aria-current]").count() == 1
    page.go_back()
    panel.get_by_role("heading", name="/softmax").wait_for()
    assert page.evaluate("window.stays") is True
    assert seen.refused() == [] and seen.troubles == []


@pytest.mark.long
def test_two_thousand_nodes_can_be_used(open_page: Open, place: Place) -> None:
    job_id, names = large_job(place.front, 2000)
    seen = open_page(f"/jobs/{job_id}/graph")
    page = seen.page
    assert page.locator("svg.graph a").count() == 200
    assert page.evaluate("document.getElementsByTagName('*').length") < 5000
    group = page.locator("svg.graph a").filter(has_text=re.compile("layer.1.block.2"))
    group.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("open=120-130"))
    assert page.locator("svg.graph a").count() == 209
    before = seen_part(page)
    page.get_by_role("button", name="Zoom in").click()
    assert seen_part(page)[2] < before[2]
    box = page.locator("svg.graph a[data-node]").nth(5)
    box.focus()
    page.keyboard.press("Enter")
    page.locator("#node dl").wait_for()
    assert page.locator("#node h2").inner_text()[:40] in names[125]
    assert seen.refused() == [] and seen.troubles == []
