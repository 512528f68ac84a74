"""Every page in real Chromium: nothing is refused or fails, all can be read and used, at any width, light and dark."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import KEY, Open, Place
from tests.support import looks, services
from tests.support.axe import axe_trouble, grave_findings
from tests.support.filled import end, tell
from tests.support.front import make_report
from tests.support.pages import Known, served

pytestmark = pytest.mark.slow  # starts a browser and a service
FOCUSED = "document.activeElement.textContent.trim() || document.activeElement.id"
WIDTHS = (1440, 360)
SCHEMES = ("light", "dark")
# One of each kind; the others are of the long lane.
USUAL = {"job-running", "new", "report", "keys", "sign-in"}


def pages_but(*usual: str) -> list[Any]:
    """All pages by their names; those that are not named are long."""
    kept = set(usual)
    marks = {page.name: () if page.name in kept else (pytest.mark.long,) for page in served()}
    assert kept <= marks.keys() and len(marks) > 30
    return [pytest.param(page, id=page.name, marks=marks[page.name]) for page in served()]


@pytest.mark.parametrize("known", pages_but(*USUAL))
def test_a_page_can_be_read_and_used(open_page: Open, known: Known) -> None:
    seen = open_page(known.path, signed_in=known.name != "sign-in")
    page = seen.page
    assert page.locator("main h1").count() == 1
    for form in page.locator("main form").all():
        assert form.get_attribute("action") is not None, "no control needs a script to do something"
        assert form.locator("button, input[type=submit]").count() >= 1
    page.evaluate(looks.OPEN_ALL)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(looks.STICKING_OUT, width) == []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(looks.CONTRAST)
        assert found["seen"] > 5
        assert found["poor"] == []
    for script in (looks.UNLABELLED, looks.NAMELESS, looks.HEADINGS, looks.DOUBLE_IDS, looks.INLINE):
        assert page.evaluate(script) == []
    assert seen.refused() == [] and seen.troubles == []


@pytest.fixture
def axe() -> None:
    services.require(axe_trouble())


@pytest.mark.usefixtures("axe")
@pytest.mark.parametrize("known", pages_but("new"))
def test_axe_finds_nothing_grave(open_page: Open, known: Known) -> None:
    # the script is put into the page, which its policy would refuse; the test above holds the policy
    page = open_page(known.path, signed_in=known.name != "sign-in", bypass_csp=True).page
    page.evaluate(looks.OPEN_ALL)
    assert grave_findings(page) == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 900})
    assert grave_findings(page) == []
    if known.name == "report":  # a grave finding would be seen
        page.evaluate("document.querySelector('main label').remove()")
        assert [one["id"] for one in grave_findings(page)] != []


def tab_to(page: Any, words: str, *, most: int = 60) -> None:
    """Go on from control to control, as who has no mouse does."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED) == words:
            return
    raise AssertionError(f"{words!r} is not reached by the keyboard")


def test_signing_in_by_keyboard(open_page: Open, place: Place) -> None:
    page = open_page("/jobs?state=failed", signed_in=False).page
    assert page.url.startswith(f"{place.url}/sign-in?next=")
    assert page.evaluate("document.activeElement.id") == "f-key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#f-key[aria-invalid=true]:focus")
    page.keyboard.type(KEY)
    tab_to(page, "Sign in")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{place.url}/jobs?state=failed")
    assert page.locator("h1").inner_text() == "Jobs"
    tab_to(page, "Sign out")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{place.url}/sign-in")


def test_the_navigation_can_be_skipped(open_page: Open) -> None:
    page = open_page("/jobs").page
    page.keyboard.press("Tab")
    link = page.locator(".skip")
    assert page.evaluate(FOCUSED) == "Skip to the content"
    box = link.bounding_box()
    assert box["x"] >= 0 and box["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_a_job_is_canceled_by_keyboard(open_page: Open, place: Place) -> None:
    of_both = {"model_id": place.ids["model"], "calibration_dataset_id": place.ids["dataset"]}
    job_id = place.front.new_job(name="to be canceled", **of_both)
    page = open_page(f"/jobs/{job_id}").page
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    tab_to(page, "Cancel")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.wait_for_selector(".acts >> text=Run it again")
    assert asked == ["Cancel this job?"]
    assert "canceled" in page.locator("#state").inner_text()


def test_a_job_is_started_by_keyboard(open_page: Open, place: Place) -> None:
    seen = open_page("/new?model_id={model}&calibration_dataset_id={dataset}")
    page, wanted = seen.page, {"f-model_id", "f-model_files", "f-calibration_dataset_id", "f-name", "f-labels"}
    page.evaluate("for (const id of ['uploads', 'options']) document.getElementById(id).open = true")
    for _ in range(400):
        page.keyboard.press("Tab")
        wanted.discard(page.evaluate("document.activeElement.id"))
        if not wanted:
            break
    assert wanted == set()
    tab_to(page, "Start job", most=400)
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/job_*")
    assert seen.refused() == [] and seen.troubles == []


def test_a_job_that_runs_is_followed(open_page: Open, place: Place) -> None:
    of_both = {"model_id": place.ids["model"], "calibration_dataset_id": place.ids["dataset"]}
    job_id = place.front.new_job(name="followed", **of_both)
    seen = open_page(f"/jobs/{job_id}")
    place.front.claim(job_id)
    tell(place.front, job_id, "The <b>first</b> line", 0.25)
    seen.page.locator("#tail", has_text="The <b>first</b> line").wait_for()
    seen.page.locator("#stage", has_text="finetune").wait_for()
    assert seen.page.locator("#meter progress").evaluate("one => one.value") == 0.25
    assert seen.page.locator("#tail b").count() == 0
    end(place.front, job_id, make_report())
    seen.page.wait_for_selector(".acts >> text=Run it again")
    assert seen.refused() == [] and seen.troubles == []
