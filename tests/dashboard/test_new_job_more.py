"""The form of a new job: files sent with it, the example, ranges of another job, and hand-overs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import FastAPI

from service.contracts.errors import NotOnnxError
from service.dashboard import new_files, new_job
from service.deps import AppState
from service.hand_overs import asking
from service.jobs.outcome import QuantizeOutcome
from service.principal import Principal
from service.settings import Settings
from tests.api.conftest import front_of
from tests.dashboard.conftest import KEY
from tests.dashboard.form_of import Form
from tests.dashboard.test_new_job import form, job, nouns, send, start
from tests.support.front import Front, dataset_summary, make_report, model_summary, npz_bytes
from tests.support.hand_overs import SIGNATURE, post, put
from tests.support.webhooks import HOST, PEPPER

RANGES = {"x": {"minimum": -1.0, "maximum": 1.0}}


@pytest.fixture
def peppered(app: FastAPI, tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A service that can keep URLs; inner.example is within the house."""
    monkeypatch.setattr(
        asking, "system_resolver", lambda host, _: ["10.0.0.7"] if host == "inner.example" else ["8.8.8.8"]
    )
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, key_pepper=PEPPER)
    with front_of(app, settings) as front:
        yield front


def calibrated(front: Front, **asked: Any) -> str:
    """A job that has succeeded, with ranges."""
    job_id = front.new_job(**asked)
    report = make_report().to_json_dict() | {"tensor_ranges": RANGES}
    front.finish(job_id, QuantizeOutcome(type(make_report()).model_validate(report), ()))
    return job_id


def test_ranges_of_a_job_are_taken_over_by_a_new_one_and_by_a_clone(sqlite_front: Front) -> None:
    chosen = nouns(sqlite_front)
    source = calibrated(sqlite_front, **chosen)
    page = form(sqlite_front, f"/new?ranges_from={source}")
    assert page["ranges_from"] == source
    made = start(sqlite_front, page, **chosen)
    assert job(sqlite_front, made)["config"]["tensor_ranges"] == RANGES
    clone = start(sqlite_front, form(sqlite_front, f"/new?from={made}"), name="again")
    assert job(sqlite_front, clone)["config"]["tensor_ranges"] == RANGES
    page = form(sqlite_front, f"/new?from={source}")
    assert source in page.described["ranges_from"]
    seen = job(sqlite_front, start(sqlite_front, page, ranges_from=source))
    assert (seen["cloned_from"], seen["config"]["tensor_ranges"]) == (source, RANGES)


def test_a_job_without_ranges_is_told_at_its_field(sqlite_front: Front) -> None:
    fields, blank = nouns(sqlite_front), form(sqlite_front)
    other = calibrated(sqlite_front, model_id=sqlite_front.ready_model(model_summary(sha256="9" * 64)))
    for action, written, status, told in (
        ("check", "job_nothing", 404, "not found"),
        ("start", sqlite_front.new_job(), 422, "no ranges"),
        ("start", other, 422, "graph"),
        ("check", "x" * 65, 422, "64"),
    ):
        page = send(sqlite_front, action, blank, status, **fields, ranges_from=written)
        assert told in page.described["ranges_from"]
        assert page["ranges_from"] == written


def test_results_are_handed_over_and_those_of_a_clone_to_what_it_says_itself(peppered: Front) -> None:
    fields = nouns(peppered)
    written = json.dumps([put(), post()], indent=2)
    page = send(peppered, "check", form(peppered), **fields, hand_over=written)
    assert page["hand_over"] == written
    made = start(peppered, page)
    kept = peppered.http.get(f"/v1/jobs/{made}/hand-over").json()["items"]
    assert [(one["kind"], one["host"]) for one in kept] == [("put", HOST), ("post", HOST)]
    clone = form(peppered, f"/new?from={made}")
    assert clone["hand_over"] == ""
    other = start(peppered, clone, hand_over=json.dumps([post()]))
    assert [one["kind"] for one in peppered.http.get(f"/v1/jobs/{other}/hand-over").json()["items"]] == ["post"]


def test_what_is_wrong_with_a_hand_over_stands_at_its_field(peppered: Front) -> None:
    chosen, blank = nouns(peppered), form(peppered)
    inner = json.dumps([{**post(), "url": "https://inner.example/in"}])
    for action, written, told in (
        ("check", "[", "not JSON"),
        ("start", "{}", "list"),
        ("check", json.dumps([{**post(), "kind": "get"}]), "0/kind: "),
        ("start", json.dumps([put(), {"kind": "put"}]), "1/url: "),
        ("start", inner, "0/url: "),
    ):
        page = send(peppered, action, blank, 422, **chosen, hand_over=written)
        assert told in page.described["hand_over"]
        assert page["hand_over"] == written
    assert peppered.http.get("/v1/jobs").json()["items"] == []


def test_no_url_of_a_hand_over_comes_into_an_address(peppered: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_job, "_WAIT_SECONDS", 0)
    written = json.dumps([put()])
    fields = form(peppered).with_fields({"hand_over": written, "name": "kept"})
    files = [("model_files", ("net.onnx", b"graph"))]
    answer = peppered.http.post("/new/model", data=fields, files=files, follow_redirects=False)
    assert answer.status_code == 200
    assert SIGNATURE in answer.text and 'value="kept"' in answer.text
    assert SIGNATURE not in peppered.http.get("/new", params={"hand_over": written}).text


def send_files(
    front: Front, path: str, files: list[tuple[str, tuple[str, bytes]]], page: Form | None = None, **fields: str
) -> Any:
    page = page or Form(front.http.get("/new").text)
    return front.http.post(path, data=page.with_fields(fields), files=files, follow_redirects=False)


def went_to(answer: Any) -> dict[str, str]:
    """The query of the page that a browser is sent to."""
    assert answer.status_code == 303, re.findall(r"<ul><li>.*?</ul>", answer.text)[:2]
    address = urlsplit(answer.headers["location"])
    assert address.path == "/new"
    return {name: values[0] for name, values in parse_qs(address.query).items()}


def test_a_model_with_external_data_is_uploaded_and_chosen(sqlite_front: Front) -> None:
    files = [("model_files", ("folder\\net.onnx", b"graph")), ("model_files", ("net.data", b"weights" * 300_000))]
    query = went_to(send_files(sqlite_front, "/new/model", files, name="My job", **{"c:/seed": "4"}))
    assert (query["name"], query["config"]) == ("My job", '{"seed": 4}')
    model = sqlite_front.http.get(f"/v1/models/{query['model_id']}").json()
    assert model["name"] == "net"
    assert {one["path"]: one["size_bytes"] for one in model["files"]} == {"net.onnx": 5, "net.data": 2_100_000}
    sqlite_front.finish(sqlite_front.inspect_job(model_id=query["model_id"]), model_summary())
    page = Form(sqlite_front.http.get("/new", params=query).text)
    assert (page["model_id"], page["c:/seed"], page["name"]) == (query["model_id"], "4", "My job")


def test_data_is_uploaded_and_chosen(sqlite_front: Front) -> None:
    for preprocessing, roles in (
        ("", {"calibration", "evaluation"}),
        ("imagenet_tf", {"calibration"}),
        ('{"inputs": {"x": {"scale": 0.5}}}', {"evaluation"}),
    ):
        files = [(f"{role}_file", ("samples.npz", npz_bytes())) for role in sorted(roles)]
        fields = {"preprocessing": preprocessing, "dataset_name": "mine"}
        query = went_to(send_files(sqlite_front, "/new/dataset", files, **fields))
        chosen = [name for name in query if name.endswith("_dataset_id")]
        assert set(chosen) == {f"{role}_dataset_id" for role in roles}
        dataset = sqlite_front.http.get(f"/v1/datasets/{query[chosen[0]]}").json()
        assert (dataset["name"], dataset["format"]) == ("mine", "npz")
        assert bool(dataset["preprocessing"]["inputs"]) is bool(preprocessing)


def test_files_that_cannot_be_used_are_refused_and_what_was_typed_stays(sqlite_front: Front) -> None:
    blank = Form(sqlite_front.http.get("/new").text)
    for path, files, preprocessing, told in (
        ("/new/model", [], "", "The job cannot start yet"),
        ("/new/model", [("model_files", ("net.data", b"x"))], "", "no .onnx file among &#39;net.data&#39;"),
        ("/new/model", [("model_files", ("net.onnx", b""))], "", "0 bytes"),
        ("/new/dataset", [], "", "Choose a data file"),
        ("/new/dataset", [("calibration_file", ("a.npz", b"x"))], "imagenet_tff", "did you mean"),
        ("/new/dataset", [("calibration_file", ("a.npz", b"x"))], "{", "not JSON"),
        ("/new/dataset", [("calibration_file", ("a.what", b"x"))], "", "Unknown file extension"),
    ):
        # a form without files is sent in parts all the same
        parts = files or [("other", ("", b""))]
        answer = send_files(sqlite_front, path, parts, blank, name="kept", preprocessing=preprocessing)
        assert answer.status_code == 422 and told in answer.text, told
        page = Form(answer.text)
        assert (page["name"], page["preprocessing"]) == ("kept", preprocessing)
    assert sqlite_front.http.get("/v1/models").json()["items"] == []


def test_what_a_rejected_model_lacks_is_told(sqlite_front: Front) -> None:
    query = went_to(send_files(sqlite_front, "/new/model", [("model_files", ("net.onnx", b"no graph"))]))
    sqlite_front.fail(sqlite_front.inspect_job(model_id=query["model_id"]), NotOnnxError("The file is no ONNX model."))
    page = Form(sqlite_front.http.get("/new", params=query).text)
    assert "no ONNX model" in page.described["model_id"]
    assert page["model_id"] == query["model_id"]


def counted(front: Front) -> tuple[int, int]:
    """How many models and datasets there are."""
    models, datasets = (front.http.get(f"/v1/{noun}").json()["items"] for noun in ("models", "datasets"))
    return len(models), len(datasets)


def test_the_example_is_made_once_and_chosen_and_made_anew_where_it_was_deleted(sqlite_front: Front) -> None:
    fields = Form(sqlite_front.http.get("/new").text).fields

    def press() -> dict[str, str]:
        return went_to(sqlite_front.http.post("/new/example", data=fields, follow_redirects=False))

    query = press()
    sqlite_front.finish(sqlite_front.inspect_job(model_id=query["model_id"]), model_summary())
    for name in ("calibration_dataset_id", "evaluation_dataset_id"):
        sqlite_front.finish(sqlite_front.inspect_job(dataset_id=query[name]), dataset_summary())
    assert press() == query
    assert counted(sqlite_front) == (1, 2)
    page = Form(sqlite_front.http.get("/new", params=query).text)
    for name in ("model_id", "calibration_dataset_id", "evaluation_dataset_id"):
        assert page[name] == query[name]
    assert page["c:/evaluation/gate/max_drop"] == "1.0"
    assert sqlite_front.http.delete(f"/v1/models/{query['model_id']}").status_code == 204
    again = press()
    assert again["model_id"] != query["model_id"]
    assert again["calibration_dataset_id"] == query["calibration_dataset_id"]


def test_two_clicks_on_the_example_at_once_make_one_of_each(
    sqlite_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, both = new_files._existing, asyncio.Barrier(2)
    looks: list[str] = []

    async def looked(app: AppState, by: Principal, kind: Any, file: str) -> str | None:
        """Neither click goes on before both have seen that nothing is there."""
        found = await look(app, by, kind, file)
        looks.append(file)
        if looks.count(file) <= 2:
            await both.wait()
        return found

    monkeypatch.setattr(new_files, "_existing", looked)
    fields = Form(sqlite_front.http.get("/new").text).fields

    def click(_: int) -> dict[str, str]:
        return went_to(sqlite_front.http.post("/new/example", data=fields, follow_redirects=False))

    with ThreadPoolExecutor(2) as clicks:
        first, second = clicks.map(click, range(2))
    assert first == second
    assert counted(sqlite_front) == (1, 2)


def test_a_signed_in_browser_sends_files_with_its_guard_alone(closed: Front) -> None:
    assert closed.http.post("/sign-in", data={"key": KEY, "next": "/new"}).status_code == 303
    page = Form(closed.http.get("/new").text)
    files = [("model_files", ("net.onnx", b"graph"))]
    without = {name: values for name, values in page.fields.items() if name != "csrf"}
    assert closed.http.post("/new/model", data=without, files=files).status_code == 403
    made = closed.http.post("/new/model", data=page.fields, files=files)
    assert re.search(r"model_id=mdl_\w{26}", made.headers["location"])
