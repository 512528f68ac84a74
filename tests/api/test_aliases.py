"""Aliases: made, moved and ended under a condition, by one at a time; every move is written down."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from service.names.aliases import repository
from tests.api.test_references import CROWDED_NOUNS, NOUNS, get, make
from tests.db.test_concurrency import THREADS, at_once
from tests.support.front import Front, problem
from tests.support.webhooks import add_endpoint, deliveries

NEW = {"If-None-Match": "*"}


def path(noun: str, noun_id: str, alias: str = "prod") -> str:
    return f"/v1/{noun}s/{noun_id}/aliases/{alias}"


def put(front: Front, noun: str, noun_id: str, headers: dict[str, str], alias: str = "prod") -> Any:
    return front.http.put(path(noun, noun_id, alias), headers=headers)


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("noun", "name"), [("model", "facebook/opt-125m"), ("model", "me@home/..?#%2F"), ("dataset", "net")]
)
def test_an_alias_is_made_moved_and_ended(front: Front, noun: str, name: str) -> None:
    first, second = make(front, noun, name), make(front, noun, name)
    assert front.http.get(f"/v1/{noun}s/{first}/aliases").json() == {"items": []}
    made = put(front, noun, first, NEW)
    assert made.status_code == 201, made.text
    assert (made.json()["name"], made.json()["alias"]) == (name, "prod")
    assert (made.json()["version"], made.json()["id"]) == (1, first)
    moved = put(front, noun, second, {"If-Match": made.headers["etag"]})
    assert (moved.status_code, moved.json()["version"], moved.json()["id"]) == (200, 2, second)
    assert moved.headers["etag"] != made.headers["etag"]
    # any version of the name leads to its aliases
    for noun_id in (first, second):
        assert front.http.get(f"/v1/{noun}s/{noun_id}/aliases").json()["items"] == [moved.json()]
        seen = front.http.get(path(noun, noun_id))
        assert (seen.json(), seen.headers["etag"]) == (moved.json(), moved.headers["etag"])
    again = front.http.get(path(noun, first), headers={"If-None-Match": moved.headers["etag"]})
    assert again.status_code == 304
    if "/" not in name:
        assert get(front, noun, f"{name}@prod").json()["id"] == second
    assert front.http.delete(path(noun, first)).status_code == 204
    assert front.http.delete(path(noun, first)).status_code == 204
    problem(front.http.get(path(noun, first)), 404, "alias-not-found")
    problem(get(front, noun, f"{name}@prod"), 404, "route-not-found" if "/" in name else f"{noun}-not-found")
    told = front.http.get(path(noun, first) + "/moves").json()["items"]
    assert [(move["version"], move["id"]) for move in told] == [(None, None), (2, second), (1, first)]
    assert {move["by"] for move in told} == {made.json()["updated_by"]}


@NOUNS
def test_conditions_are_held_to(front: Front, noun: str) -> None:
    first, second = make(front, noun, "net"), make(front, noun, "net")
    told = problem(put(front, noun, first, {}), 428, "precondition-required")
    assert "If-None-Match" in told["hint"]
    problem(put(front, noun, first, {"If-Match": '"1"'}), 412, "precondition-failed")
    problem(put(front, noun, first, {"If-Match": "*"}), 412, "precondition-failed")
    etag = put(front, noun, first, NEW).headers["etag"]
    told = problem(put(front, noun, second, NEW), 412, "precondition-failed")
    assert (told["where"]["etag"], told["errors"][0]["where"]) == (etag, {"header": "If-None-Match"})
    problem(put(front, noun, second, {"If-Match": '"99"'}), 412, "precondition-failed")
    problem(put(front, noun, second, {"If-Match": f"W/{etag}"}), 412, "precondition-failed")
    problem(front.http.delete(path(noun, first), headers={"If-Match": '"99"'}), 412, "precondition-failed")
    same = put(front, noun, first, {"If-Match": etag})
    assert (same.status_code, same.headers["etag"]) == (200, etag)
    assert put(front, noun, second, {"If-Match": f'"99", {etag}'}).json()["id"] == second
    assert put(front, noun, first, {"If-Match": "*"}).json()["id"] == first
    seen = set()  # a tag never comes back
    for _ in range(3):
        front.http.delete(path(noun, first))
        seen.add(put(front, noun, first, NEW).headers["etag"])
    assert len(seen | {etag}) == 4


@NOUNS
def test_an_alias_stands_for_what_is_ready(front: Front, noun: str) -> None:
    problem(put(front, noun, make(front, noun, "net", ready=False), NEW), 409, f"{noun}-not-ready")
    rejected = front.rejected_model() if noun == "model" else front.rejected_dataset()
    problem(put(front, noun, rejected, NEW), 422, f"{noun}-rejected")
    prefix = "mdl" if noun == "model" else "dst"
    problem(put(front, noun, f"{prefix}_{'0' * 26}", NEW), 404, f"{noun}-not-found")


def test_what_cannot_be_an_alias_is_refused(sqlite_front: Front) -> None:
    noun_id = make(sqlite_front, "model", "net")
    for word in ("latest", "Prod", "3", "a--b", "x" * 65, "prod%20"):
        problem(put(sqlite_front, "model", noun_id, NEW, word), 422, "invalid-alias")
        problem(sqlite_front.http.get(path("model", noun_id, word)), 404, "alias-not-found")
    assert put(sqlite_front, "model", noun_id, NEW, "eu-prod.2").status_code == 201


@NOUNS
def test_names_have_their_own_aliases_and_one_is_promoted_to_another(front: Front, noun: str) -> None:
    one, other = make(front, noun, "net"), make(front, noun, "net@prod")
    assert put(front, noun, one, NEW).status_code == put(front, noun, other, NEW).status_code == 201
    assert get(front, noun, "net@prod").json()["id"] == one
    assert get(front, noun, "net@prod@prod").json()["id"] == other
    second = make(front, noun, "net")
    put(front, noun, second, NEW, "canary")
    assert put(front, noun, "net@canary", {"If-Match": "*"}).json()["id"] == second


@pytest.mark.both_databases
@CROWDED_NOUNS
def test_of_many_at_once_one_makes_it_and_one_moves_it(front: Front, noun: str) -> None:
    ids = [make(front, noun, "net") for _ in range(3)]
    made = at_once(THREADS, lambda number: put(front, noun, ids[number % 3], NEW))
    assert sorted(answer.status_code for answer in made) == [201] + [412] * (THREADS - 1)
    (won,) = [answer for answer in made if answer.status_code == 201]
    targets = [noun_id for noun_id in ids if noun_id != won.json()["id"]]
    moved = at_once(THREADS, lambda number: put(front, noun, targets[number % 2], {"If-Match": won.headers["etag"]}))
    assert sorted(answer.status_code for answer in moved) == [200] + [412] * (THREADS - 1)
    told = front.http.get(path(noun, ids[0]) + "/moves").json()["items"]
    (winner,) = [answer.json()["id"] for answer in moved if answer.status_code == 200]
    assert [move["id"] for move in told] == [winner, won.json()["id"]]


def test_so_many_aliases_and_moves_are_kept(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_MOVES", 3)
    monkeypatch.setattr("service.names.aliases.service.MOST_ALIASES", 2)
    ids = [make(sqlite_front, "model", "net") for _ in range(2)]
    put(sqlite_front, "model", ids[0], NEW)
    for number in range(1, 6):
        put(sqlite_front, "model", ids[number % 2], {"If-Match": "*"})
    told = sqlite_front.http.get(path("model", ids[0]) + "/moves").json()["items"]
    assert [move["id"] for move in told] == [ids[1], ids[0], ids[1]]
    assert put(sqlite_front, "model", ids[0], NEW, "b").status_code == 201
    problem(put(sqlite_front, "model", ids[0], NEW, "c"), 409, "too-many-aliases")
    assert put(sqlite_front, "model", ids[1], {"If-Match": "*"}, "b").status_code == 200


@pytest.mark.both_databases
def test_latest_is_looked_up_while_versions_come(front: Front) -> None:
    """Whoever asks meanwhile gets a version that is ready, and none that is older than one seen before."""
    make(front, "model", "net")
    seen: list[int] = []
    over = threading.Event()

    def ask(number: int) -> None:
        if number == 0:
            for _ in range(5):
                make(front, "model", "net")
            over.set()
            return
        while not over.is_set():
            answer = get(front, "model", "net@latest").json()
            assert answer["status"] == "ready"
            seen.append(answer["version"])

    at_once(2, ask)
    assert seen == sorted(seen)
    assert get(front, "model", "net@latest").json()["version"] == 6


def test_a_move_is_told_to_webhooks(front: Front) -> None:
    database = front.desk.database
    endpoint_id, _ = add_endpoint(database, "https://hooks.invalid/", ["alias.moved"], tenant="default")
    first, second = make(front, "model", "net"), make(front, "model", "net")
    etag = put(front, "model", first, NEW).headers["etag"]
    assert put(front, "model", second, {"If-Match": etag}).status_code == 200
    assert put(front, "model", second, {"If-Match": "*"}).status_code == 200, "it stands for that already"
    told = [json.loads(row.payload)["data"] for row in deliveries(database, endpoint_id=endpoint_id)]
    assert told == [
        {"id": noun_id, "noun": "model", "name": "net", "alias": "prod", "version": version, "previous_id": before}
        for version, noun_id, before in ((1, first, None), (2, second, first))
    ]
