"""The drawing of a graph and the form of a new job in real Chromium: what their scripts do."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.contracts.graph_view import TensorGrid
from tests.dashboard.conftest import Open, Place
from tests.support.filled import chain, job
from tests.support.front import dataset_summary, model_summary
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
    page.keyboard.press("+")
    page.get_by_role("button", name="Fit").click()
    assert seen_part(page)[2:] == whole[2:], "all of a deep graph could not be read: its width fits"
    frame.focus()
    page.keyboard.press("+")
    page.keyboard.press("0")
    assert seen_part(page)[2:] == whole[2:]
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


def test_the_label_of_an_edge_shows_its_grid_without_a_reload(open_page: Open, place: Place) -> None:
    grid = TensorGrid(dtype="uint8", scales=1, scale_low=0.125, scale_high=0.125, zero_point=3)
    view = chain(NODES)
    tensors = tuple(
        tensor.model_copy(update={"grid": grid if k == 2 else None}) for k, tensor in enumerate(view.tensors)
    )
    job_id = job(place.front, full_report(), view.model_copy(update={"tensors": tensors}))
    seen = open_page(f"/jobs/{job_id}/graph")
    page, panel = seen.page, seen.page.locator("#node")
    page.get_by_role("link", name="Show Q/DQ").click()
    page.get_by_role("link", name="Hide Q/DQ").wait_for()
    page.evaluate("window.stays = true")
    page.locator("svg.graph a.pair").click()
    chosen = panel.locator("tr.selected")
    chosen.wait_for()
    assert all(words in chosen.inner_text() for words in ("t2", "uint8", "scale 0.125", "zero point 3"))
    assert page.locator("svg.graph a.box[aria-current]").count() == 1
    assert page.evaluate("window.stays") is True
    assert seen.refused() == [] and seen.troubles == []


PART_BYTES = 8 * 1024 * 1024
# Runs in the page: what a browser makes of a file that is dragged over it.
_DRAGGED = """([name, text]) => {
  const dragged = new DataTransfer();
  dragged.items.add(new File([text], name));
  return dragged;
}"""
# Pauses between attempts are not waited for.
_NO_PAUSES = "const later = window.setTimeout; window.setTimeout = (work, _, ...rest) => later(work, 0, ...rest);"


def drop(page: Any, zone: Any, name: str, text: str) -> None:
    """Drag a file over the zone and drop it there."""
    dragged = page.evaluate_handle(_DRAGGED, [name, text])
    zone.dispatch_event("dragover", {"dataTransfer": dragged})
    assert "over" in zone.get_attribute("class").split()
    zone.dispatch_event("drop", {"dataTransfer": dragged})
    assert "over" not in zone.get_attribute("class").split()


def made(page: Any, noun: str) -> Any:
    """Waits for the answer to the request that makes a model or a dataset."""
    return page.expect_response(lambda one: one.request.method == "POST" and one.url.endswith(f"/v1/{noun}s"))


@pytest.mark.parametrize(("noun", "file"), [("model", "dropped net.onnx"), ("dataset", "dropped net.npz")])
def test_what_is_dropped_is_sent_and_chosen(open_page: Open, place: Place, noun: str, file: str) -> None:
    seen, field = open_page("/new"), "model_id" if noun == "model" else "calibration_dataset_id"
    page, zone = seen.page, seen.page.locator(f"[data-drop={noun}][data-chosen={field}]")
    page.locator(f"#f-{field}_other").evaluate("one => { one.value = 'other@1'; }")
    page.locator("#f-preprocessing").evaluate('one => { one.value = \'{"inputs": {"x": {"scale": 0.5}}}\'; }')
    if noun == "model":
        with made(page, noun) as answer:
            drop(page, zone, file, f"{noun} bytes")
    else:
        drop(page, zone, file, f"{noun} bytes")
        zone.get_by_text(f"{file}. Choose its preprocessing").wait_for()
        page.get_by_role("button", name="Start job").first.click()
        page.get_by_role("alert").get_by_text("not uploaded yet").wait_for()
        with made(page, noun) as answer:
            page.get_by_role("button", name="Upload data").click()
    noun_id = answer.value.json()["id"]
    zone.get_by_text(re.compile("validating|no worker", re.I)).or_(zone.locator("progress")).first.wait_for()
    summary = model_summary() if noun == "model" else dataset_summary()
    place.front.finish(place.front.inspect_job(**{f"{noun}_id": noun_id}), summary)
    zone.locator(".upload .good").wait_for()
    fed = "; fed to the model as x: x × 0.5" if noun == "dataset" else ""
    assert f"dropped net@1 is ready{fed}. It is chosen above" in zone.locator(".upload").inner_text()
    assert page.locator(f"#f-{field}").input_value() == noun_id
    assert page.locator(f"#f-{field}_other").input_value() == ""
    assert zone.locator("progress").count() == 0
    if noun == "dataset":
        assert place.front.http.get(f"/v1/datasets/{noun_id}").json()["preprocessing"]["inputs"]["x"]["scale"] == 0.5
    assert seen.refused() == [] and seen.troubles == []


@pytest.mark.parametrize(
    ("arrays", "told", "chosen"),
    [
        ({"images": np.full((4, 8, 8, 3), 200, np.uint8)}, "images (uint8, 4 × 8 × 8 × 3, 200 to 200)", "cifar10"),
        ({"pixels": np.full((2, 3, 224, 224), 255, np.float32)}, "255 to 255", "imagenet_torchvision"),
        ({"x": np.full((5, 28, 28), 128, np.uint8), "labels": np.arange(5)}, "labels (int64, 5, 0 to 4)", "x / 255"),
        ({"x": np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 4, 8, 8)}, "float32, 2 × 4 × 8 × 8, -1 to 1", ""),
        ({"tokens": np.full((4, 16), 30_000)}, "30000 to 30000", ""),
    ],
)
def test_the_preprocessing_is_suggested_by_what_the_file_contains(
    open_page: Open, tmp_path: Path, arrays: dict[str, Any], told: str, chosen: str
) -> None:
    page = open_page("/new").page
    page.locator("#uploads").evaluate("one => { one.open = true; }")
    zone = page.locator("[data-drop=dataset]").first
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.savez(tmp_path / "plain.npz", **arrays)
    save_file({name: np.ascontiguousarray(one) for name, one in arrays.items()}, tmp_path / "plain.safetensors")
    for name in ("packed.npz", "plain.npz", "plain.safetensors"):
        page.locator("#f-calibration_file").set_input_files(tmp_path / name)
        zone.get_by_text(f"{name}: ").wait_for()
        assert told in zone.locator(".upload").inner_text()
        seen = page.locator("#f-preprocessing_name option:checked").inner_text()
        assert chosen in seen if chosen else seen.startswith("None")


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of bytes: nobody here looks whether it is a model."""
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    path.write_bytes(np.random.default_rng(0).bytes(2 * PART_BYTES + 1000))
    return path


def test_an_upload_goes_on_after_breaks_from_where_the_service_is(
    open_page: Open, place: Place, large_model: Path
) -> None:
    page = open_page("/new").page
    zone, data, offsets = page.locator("[data-drop=model]"), large_model.read_bytes(), []

    def pass_or_break(route: Any) -> None:
        """The second part is lost; the service has the third, and the page will not know."""
        if route.request.method != "PATCH":
            return route.continue_()
        offset = int(route.request.headers["upload-offset"])
        offsets.append(offset)
        if len(offsets) not in (2, 3):
            return route.continue_()
        if len(offsets) == 3:
            headers = {"Upload-Offset": str(offset), "Content-Type": "application/octet-stream"}
            path = route.request.url.removeprefix(place.url)
            answer = place.front.http.patch(path, content=data[offset : offset + PART_BYTES], headers=headers)
            assert answer.status_code in (httpx.codes.OK, httpx.codes.NO_CONTENT), answer.text
        return route.abort()

    page.evaluate(_NO_PAUSES)
    page.route("**/v1/uploads/*", pass_or_break)
    with made(page, "model") as answer:
        page.locator("#f-model_files").set_input_files(large_model)
    assert offsets == [0, PART_BYTES, PART_BYTES, 2 * PART_BYTES]
    model_id = answer.value.json()["id"]
    place.front.finish(place.front.inspect_job(model_id=model_id), model_summary())
    zone.locator(".upload .good").wait_for()
    (file,) = place.front.http.get(f"/v1/models/{model_id}").json()["files"]
    assert (file["size_bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_what_is_dropped_and_cannot_be_used_or_sent_is_told(open_page: Open) -> None:
    page = open_page("/new").page
    zone = page.locator("[data-drop=model]")
    drop(page, zone, "empty.onnx", "")
    zone.locator(".upload .bad").wait_for()
    assert "0 bytes" in zone.locator(".upload").inner_text()
    assert not zone.get_by_role("button", name="Upload model").is_visible()
    page.evaluate(_NO_PAUSES)
    page.route("**/v1/uploads/*", lambda route: route.abort() if route.request.method == "PATCH" else route.continue_())
    drop(page, zone, "net.onnx", "model bytes")
    zone.get_by_text("broke too often").wait_for()


def test_a_page_is_not_left_before_its_uploads_have_ended(open_page: Open) -> None:
    page = open_page("/new").page
    held: list[Any] = []
    page.route("**/v1/uploads/*", lambda route: held.append(route))
    zone = page.locator("[data-drop=model]")
    drop(page, zone, "net.onnx", "model bytes")
    zone.get_by_text("Uploading net.onnx").wait_for()
    page.get_by_role("button", name="Start job").first.click()
    page.get_by_role("alert").get_by_text("net.onnx: still uploading").wait_for()
    assert page.url.endswith("/new")
    for route in held:
        route.abort()


def test_ids_are_copied_and_times_are_local(open_page: Open, place: Place) -> None:
    options = {"permissions": ["clipboard-read", "clipboard-write"], "timezone_id": "Asia/Tokyo", "locale": "en-US"}
    seen = open_page("/jobs/{succeeded}", **options)
    page = seen.page
    button = page.get_by_role("button", name="Copy id", exact=True)
    button.click()
    page.get_by_role("status").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == place.ids["succeeded"]
    time = page.locator("#timeline time").first
    utc = time.get_attribute("title")
    assert utc.endswith(" UTC") and utc[11:16] not in time.inner_text(), "nine hours lie between the two"
    at = datetime.fromisoformat(time.get_attribute("datetime")).astimezone(timezone(timedelta(hours=9)))
    assert f"{at:%M:%S}" in time.inner_text() and f"{at:%b} {at.day}, {at:%Y}" in time.inner_text()
    # a browser that keeps the clipboard from pages is helped by a selection
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')); }")
    page.get_by_role("button", name="Copy curl command").click()
    page.get_by_role("status").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl --fail-with-body")
    assert seen.refused() == [] and seen.troubles == []


def test_a_new_schedule_begins_in_the_time_zone_of_the_browser(open_page: Open) -> None:
    page = open_page("/schedules/new?from={succeeded}", timezone_id="Asia/Tokyo").page
    page.locator("#reading", has_text="(Asia/Tokyo)").wait_for()
    assert page.locator("#f-timezone").input_value() == "Asia/Tokyo"


def test_a_card_and_the_list_of_presets_exclude_each_other(open_page: Open) -> None:
    page = open_page("/new").page
    card, others = page.get_by_role("radio", name="int8_accurate"), page.locator("#more-presets")
    with page.expect_response("**/new"):
        others.select_option("xint8")
    assert page.locator("input[name='c:/preset']:checked").count() == 0
    with page.expect_response("**/new"):
        card.check()
    assert others.input_value() == ""


def test_a_session_that_has_ended_is_told_and_its_answers_are_not_shown(open_page: Open, small: str) -> None:
    def ended(path: str) -> Any:
        page = open_page(path).page
        page.context.clear_cookies()
        return page

    def told(page: Any) -> None:
        page.get_by_role("alert").get_by_text("Your session has ended.").wait_for()
        here = page.evaluate("location.pathname + location.search")
        link = page.locator("#signed-out a").get_attribute("href")
        assert parse_qs(urlsplit(link).query)["next"] == [here]
        assert page.locator("input[type=password]").count() == 0

    page = ended("/schedules/new?from={succeeded}")
    page.locator("#f-cron").fill("0 4 * * *")
    told(page)
    page = ended("/new")
    page.get_by_role("radio", name="int8_accurate").check()
    told(page)
    drop(page, page.locator("[data-drop=model]"), "net.onnx", "model bytes")
    page.locator("[data-drop=model] .bad").get_by_text("Your session has ended.").wait_for()
    told(ended("/jobs/{searching}/trials"))
    page = ended(small)
    page.locator("svg.graph a.box").filter(has_text="/features/2").click()
    page.wait_for_url(re.compile(r"/sign-in\?next=.*node"))


def test_an_error_is_gone_once_its_field_is_changed(open_page: Open) -> None:
    page = open_page("/new").page
    page.locator("[name='c:/evaluation/gate/max_drop']").fill("abc")
    page.get_by_role("button", name="Start job").first.click()
    faults, model = page.locator("#faults"), page.locator(".field", has=page.locator("#f-model_id"))
    faults.get_by_text("Largest accuracy drop: must be a number, not 'abc'").wait_for()
    page.wait_for_load_state("load")
    page.locator("[name='c:/evaluation/gate/max_drop']").fill("1")
    assert [one.inner_text() for one in faults.get_by_role("link").all()] == ["Model"]
    assert model.locator(".bad").count() == 1
    page.locator("#f-model_id").select_option(index=1)
    assert faults.count() == 0 and model.locator(".bad, [aria-invalid]").count() == 0


def test_a_file_of_another_kind_is_told_in_words_of_the_form(open_page: Open) -> None:
    page = open_page("/new").page
    for noun, file, told in (
        ("model", "README.md", "No .onnx file among 'README.md'."),
        ("dataset", "net.onnx", "Unknown file extension: 'net.onnx'. Allowed file types: npz,"),
    ):
        zone = page.locator(f"[data-drop={noun}]").first
        drop(page, zone, file, "bytes")
        if noun == "dataset":
            zone.get_by_text("Choose its preprocessing").wait_for()
            page.get_by_role("button", name="Upload data").click()
        zone.locator(".upload .bad").wait_for()
        said = zone.locator(".upload").inner_text()
        assert told in said and "/docs" not in said and "/files" not in said
