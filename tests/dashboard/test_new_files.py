"""Files sent with the form of a new job, without scripts, and the example that comes with the service."""

from __future__ import annotations

import asyncio
import io
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from service.contracts.errors import NotOnnxError
from service.dashboard import new_files
from service.deps import Desk
from service.principal import Principal
from tests.dashboard.conftest import KEY
from tests.dashboard.form_of import Form
from tests.support.front import Front, dataset_summary, model_summary, npz_bytes


def send(
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
    query = went_to(send(sqlite_front, "/new/model", files, name="My job", **{"c:/seed": "4"}))
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
        query = went_to(send(sqlite_front, "/new/dataset", files, **fields))
        chosen = [name for name in query if name.endswith("_dataset_id")]
        assert set(chosen) == {f"{role}_dataset_id" for role in roles}
        dataset = sqlite_front.http.get(f"/v1/datasets/{query[chosen[0]]}").json()
        assert (dataset["name"], dataset["format"]) == ("mine", "npz")
        assert bool(dataset["preprocessing"]["inputs"]) is bool(preprocessing)


def test_files_that_cannot_be_used_are_refused_and_what_was_typed_stays(sqlite_front: Front) -> None:
    blank = Form(sqlite_front.http.get("/new").text)
    for path, files, preprocessing, told in (
        ("/new/model", [], "", "This cannot be run yet"),
        ("/new/model", [("model_files", ("net.data", b"x"))], "", "must end in .onnx"),
        ("/new/model", [("model_files", ("net.onnx", b""))], "", "0 bytes"),
        ("/new/dataset", [], "", "Choose the data"),
        ("/new/dataset", [("calibration_file", ("a.npz", b"x"))], "imagenet_tff", "did you mean"),
        ("/new/dataset", [("calibration_file", ("a.npz", b"x"))], "{", "not JSON"),
        ("/new/dataset", [("calibration_file", ("a.what", b"x"))], "", "does not tell the format"),
    ):
        # a form without files is sent in parts all the same
        parts = files or [("other", ("", b""))]
        answer = send(sqlite_front, path, parts, blank, name="kept", preprocessing=preprocessing)
        assert answer.status_code == 422 and told in answer.text, told
        page = Form(answer.text)
        assert (page["name"], page["preprocessing"]) == ("kept", preprocessing)
    assert sqlite_front.http.get("/v1/models").json()["items"] == []


def test_what_a_rejected_model_lacks_is_told(sqlite_front: Front) -> None:
    query = went_to(send(sqlite_front, "/new/model", [("model_files", ("net.onnx", b"no graph"))]))
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

    async def looked(desk: Desk, by: Principal, kind: Any, file: str) -> str | None:
        """Neither click goes on before both have seen that nothing is there."""
        found = await look(desk, by, kind, file)
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


def example(name: str) -> bytes:
    return resources.files("service.dashboard").joinpath("examples", name).read_bytes()


def test_the_example_is_a_small_float_model_that_knows_its_digits() -> None:
    graph, data = example("digits.onnx"), np.load(io.BytesIO(example("evaluation.npz")))
    assert len(graph) < 100_000
    assert len(example("evaluation.npz")) + len(example("calibration.npz")) < 300_000
    images = (data["image"][:, None] / 16).astype(np.float32)
    (scores,) = ReferenceEvaluator(onnx.load_from_string(graph)).run(None, {"image": images[:100]})
    assert (scores.argmax(1) == data["labels"][:100]).mean() > 0.95


def test_a_signed_in_browser_sends_files_with_its_guard_alone(closed: Front) -> None:
    assert closed.http.post("/sign-in", data={"key": KEY, "next": "/new"}).status_code == 303
    page = Form(closed.http.get("/new").text)
    files = [("model_files", ("net.onnx", b"graph"))]
    without = {name: values for name, values in page.fields.items() if name != "csrf"}
    assert closed.http.post("/new/model", data=without, files=files).status_code == 403
    made = closed.http.post("/new/model", data=page.fields, files=files)
    assert re.search(r"model_id=mdl_\w{26}", made.headers["location"])
