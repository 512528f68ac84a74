"""The whole way in a browser, with real workers: upload, launch, watch, report, graph, clone, compare, schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from tests.support.browser import new_page
from tests.worker.running import Service

pytestmark = pytest.mark.slow
_EXAMPLE = Path("service/dashboard/examples").resolve()
_PREPROCESSING = '{"inputs": {"image": {"layout": "NHW", "model_layout": "NCHW", "scale": 0.0625}}}'
_MOST_TABS = 400
# Below, the navigation is a menu.
_NARROW = 900


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("path") / "home") as service:
        yield service


class Visitor:
    """Somebody at the pages, by pointer or by keyboard alone: then every control is reached by Tab."""

    def __init__(self, context: Any, url: str, by_keyboard: bool) -> None:
        self.seen = new_page(context, url)
        self.page = self.seen.page
        self.by_keyboard = by_keyboard

    def reach(self, role: str, name: str | re.Pattern[str]) -> Any:
        return self.focus(self.page.get_by_role(role, name=name, exact=isinstance(name, str)).first)

    def focus(self, found: Any) -> Any:
        if not self.by_keyboard:
            found.focus()
            return found
        for _ in range(_MOST_TABS):
            self.page.keyboard.press("Tab")
            if found.evaluate("one => one === document.activeElement"):
                return found
        raise AssertionError(f"{found} cannot be reached by Tab at {self.page.url}")

    def unfold(self, words: str) -> None:
        """Open a part of the page, if it is not."""
        part = self.page.locator("details", has=self.page.locator("summary", has_text=words)).last
        if part.get_attribute("open") is None:
            self.focus(part.locator("summary").first)
            self.page.keyboard.press("Enter")

    def use(self, role: str, name: str | re.Pattern[str], to: str) -> None:
        """Use a link or a button, and come to a page."""
        found = self.reach(role, name)
        if self.by_keyboard:
            self.page.keyboard.press("Enter")
        else:
            found.click()
        self.page.wait_for_url(re.compile(to))

    def write(self, field_id: str, text: str) -> None:
        """Write into a field, which has a label: some labels stand on the page twice, in parts of their own."""
        field = self.page.locator(f"#{field_id}")
        assert field.evaluate("one => one.labels.length") == 1
        self.focus(field)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def upload(self, label: str, file: Path, chosen: str, button: str = "") -> None:
        """Choose a file, which is sent at once or by a button; waits until what was made of it is chosen."""
        field = self.page.get_by_label(label)
        if self.by_keyboard:
            self.focus(field)
        field.set_input_files(file)
        if button:
            self.reach("button", button).press("Enter")
        self.page.locator(f"select[name={chosen}] option:checked:not([value=''])").wait_for(state="attached")

    def seen_well(self) -> None:
        """Nothing was refused, broken, or sticks out."""
        assert self.seen.refused() == []
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, self.page.url
        assert self.seen.troubles == []


@pytest.mark.long
@pytest.mark.parametrize(("width", "by_keyboard"), [(360, False), (1440, True)])
def test_from_an_upload_to_a_schedule(browser: Any, running: Service, width: int, by_keyboard: bool) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    visitor = Visitor(context, f"{running.url}/", by_keyboard)
    page = visitor.page
    visitor.use("link", "New job", "/new")
    visitor.unfold("Upload files")
    visitor.upload("Upload a model: ONNX file", _EXAMPLE / "digits.onnx", "model_id")
    visitor.unfold("Preprocessing as JSON")
    visitor.write("f-preprocessing", _PREPROCESSING)
    visitor.upload("Calibration file", _EXAMPLE / "calibration.npz", "calibration_dataset_id", "Upload data")
    running.client.wait_ready(running.client.model(page.locator("select[name=model_id]").input_value()))
    running.client.wait_ready(running.client.dataset(page.locator("select[name=calibration_dataset_id]").input_value()))
    visitor.unfold("Name, labels")
    visitor.write("f-name", f"by hand at {width}")
    visitor.seen_well()
    visitor.use("button", "Start job", "/jobs/job_")
    job_id = page.url.rpartition("/")[2]
    page.get_by_role("link", name="Report", exact=True).wait_for()  # the page follows the job by itself
    assert "Succeeded" in page.locator("#state").inner_text()
    visitor.seen_well()
    visitor.use("link", "Report", "/report")
    visitor.seen_well()
    visitor.use("link", "Graph", "/graph")
    visitor.reach("link", re.compile("Conv"))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("node="))
    page.get_by_role("heading", name=re.compile("Conv")).first.wait_for()
    visitor.seen_well()
    page.goto(f"{running.url}/jobs/{job_id}")
    visitor.use("link", "Clone and edit", "from=")
    visitor.unfold("Name, labels")
    visitor.write("f-name", f"again at {width}")
    visitor.use("button", "Start job", f"/jobs/job_(?!{job_id.removeprefix('job_')})")
    other_id = page.url.rpartition("/")[2]
    page.get_by_role("link", name="Report", exact=True).wait_for()
    if width < _NARROW:
        visitor.unfold("Menu")
    visitor.use("link", "Jobs", "/jobs$")
    for name in (f"again at {width}", f"by hand at {width}"):
        visitor.reach("checkbox", f"Compare {name}")
        page.keyboard.press("Space")
    visitor.use("button", "Compare selected jobs", "/compare")
    visitor.seen_well()
    assert job_id in page.url
    page.goto(f"{running.url}/jobs/{other_id}")
    visitor.use("link", "Schedule", "/schedules/new")
    visitor.write("f-name", f"nightly at {width}")
    visitor.use("button", "Create schedule", "/schedules/sch_")
    visitor.seen_well()
    context.close()
    with Client(running.url) as client:
        assert client.job(other_id).cloned_from == job_id


@pytest.mark.long
def test_the_same_without_scripts(browser: Any, running: Service) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1440, "height": 900})
    page = new_page(context, f"{running.url}/new").page
    page.get_by_role("button", name="Use the example model and data").click()
    page.wait_for_url(re.compile("model_id="))
    page.get_by_role("button", name="Start").first.click()
    page.wait_for_url(re.compile("/jobs/job_"))
    # a page of a job that runs loads itself again
    page.get_by_role("link", name="Report", exact=True).click()
    page.wait_for_url(re.compile("/report"))
    assert page.get_by_text("Layers", exact=True).count() > 0
    page.get_by_role("link", name="Graph").first.click()
    page.wait_for_url(re.compile("/graph"))
    context.close()
