"""What people say of models and datasets: tags and a description; and what lists find them by."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.api.test_model_versions import new_version
from tests.api.test_references import NOUNS, get, make
from tests.support.front import Front, npz_bytes, pointers, problem

ANY = {"If-Match": "*"}


def patch(front: Front, noun: str, noun_id: str, body: dict[str, Any], headers: dict[str, str] = ANY) -> Any:
    return front.http.patch(f"/v1/{noun}s/{noun_id}", json=body, headers=headers)


def listed(front: Front, noun: str, **filters: str) -> list[str]:
    answer = front.http.get(f"/v1/{noun}s", params=filters)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


@NOUNS
def test_what_is_given_is_set_and_what_is_not_stays(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net")
    before = get(front, noun, noun_id)
    assert (before.json()["tags"], before.json()["description"]) == ({}, None)
    text = "Trained on Tuesday.\nWith\tdropout. ✓"
    done = patch(front, noun, "net@latest", {"tags": {"team": "vision", "eu/run": ""}, "description": text})
    assert done.status_code == 200, done.text
    seen = get(front, noun, noun_id)
    assert seen.json() == done.json()
    assert seen.headers["etag"] == done.headers["etag"] != before.headers["etag"]
    assert (seen.json()["tags"], seen.json()["description"]) == ({"team": "vision", "eu/run": ""}, text)
    assert seen.json()["updated_at"] >= before.json()["updated_at"]
    assert patch(front, noun, noun_id, {"tags": {"team": "audio"}}).json()["description"] == text
    assert patch(front, noun, noun_id, {"description": None}).json()["tags"] == {"team": "audio"}
    (item,) = front.http.get(f"/v1/{noun}s").json()["items"]
    assert (item["tags"], item["description"]) == ({"team": "audio"}, None)


@pytest.mark.both_databases
@NOUNS
def test_two_do_not_overwrite_each_other(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net")
    seen = {"If-Match": get(front, noun, noun_id).headers["etag"]}
    problem(patch(front, noun, noun_id, {"tags": {}}, headers={}), 428, "precondition-required")
    assert patch(front, noun, noun_id, {"tags": {"by": "one"}}, seen).status_code == 200
    problem(patch(front, noun, noun_id, {"tags": {"by": "two"}}, seen), 412, "precondition-failed")
    assert get(front, noun, noun_id).json()["tags"] == {"by": "one"}


@pytest.mark.both_databases
def test_so_much_can_be_said_and_no_more(front: Front) -> None:
    noun_id, party = make(front, "model", "net"), "\U0001f389"
    most = {"tags": {f"key-{number}": party * 255 for number in range(64)}, "description": party * 4000}
    assert patch(front, "model", noun_id, most).json()["tags"] == most["tags"]
    for body, pointer in (
        ({"tags": {f"k{number}": "" for number in range(65)}}, "/tags"),
        ({"tags": {"no key": ""}}, "/tags/no key"),
        ({"tags": {"key": "x" * 256}}, "/tags/key"),
        ({"tags": {"key": "\x00"}}, "/tags/key"),
        ({"tags": None}, "/tags"),
        ({"description": "x" * 4001}, "/description"),
        ({"description": "\x00"}, "/description"),
        ({"name": "other"}, "/name"),
    ):
        (found,) = pointers(problem(patch(front, "model", noun_id, body), 422, "invalid-request"))
        assert found.startswith(pointer)


@pytest.mark.both_databases
@NOUNS
def test_lists_are_filtered(front: Front, noun: str) -> None:
    first, second, other = make(front, noun, "net"), make(front, noun, "net"), make(front, noun, "other")
    patch(front, noun, first, {"tags": {"team": "vision", "stage": "old"}})
    patch(front, noun, other, {"tags": {"team": "vision"}})
    assert listed(front, noun, name="net") == [second, first]
    assert listed(front, noun, name="ne") == []
    assert listed(front, noun, **{"tag.team": "vision"}) == [other, first]
    assert listed(front, noun, **{"tag.team": "vision", "tag.stage": "old"}) == [first]
    assert listed(front, noun, **{"tag.team": "vision", "name": "net", "status": "ready"}) == [first]
    assert listed(front, noun, **{"tag.team": "visio"}) == []
    for filters, place in (({"tag.": "a"}, "tag."), ({"tga.team": "a"}, "tga.team")):
        told = problem(front.http.get(f"/v1/{noun}s", params=filters), 422, "invalid-request")
        assert told["errors"][0]["where"] == {"query": place}
    page = front.http.get(f"/v1/{noun}s", params={"tag.team": "vision", "limit": "1"})
    rest = front.http.get(page.headers["link"].partition(">")[0].removeprefix("<"))
    assert [item["id"] for item in page.json()["items"] + rest.json()["items"]] == [other, first]
    cursor = page.json()["next_cursor"]
    problem(front.http.get(f"/v1/{noun}s", params={"name": "other", "cursor": cursor}), 422, "invalid-cursor")


def test_a_file_finds_what_it_is_the_main_file_of(front: Front) -> None:
    model_id, dataset_id = make(front, "model", "net"), make(front, "dataset", "some")
    version = new_version(front, model_id)
    assert listed(front, "model", sha256=hashlib.sha256(b"model bytes").hexdigest()) == [model_id]
    assert listed(front, "dataset", sha256=hashlib.sha256(npz_bytes()).hexdigest()) == [dataset_id]
    # what new weights came in is no main file; what was made of them is
    files = {file["path"]: file["sha256"] for file in get(front, "model", version).json()["files"]}
    assert listed(front, "model", sha256=files["state.safetensors"]) == []
    assert listed(front, "model", sha256=files["model.onnx"]) == [version]
    problem(front.http.get("/v1/models?sha256=abc"), 422, "invalid-request")
