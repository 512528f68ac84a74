"""Requests that cost a service more than their sender: each is refused, and nobody else waits for it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.orm import Session

from service import bodies
from service.jobs import checking
from service.jobs.schemas import JobCreate
from service.keys.keyring import Keyring
from service.reports import router as reports
from service.settings import Settings
from tests.support.each import each
from tests.support.front import Front, model_summary, problem
from tests.support.patience import PATIENCE_SECONDS

ROUTES = ("/v1/jobs", "/v1/jobs:validate")
LONG_NAME = "n" * 10_000


def nodes(count: int, word: str = "n") -> list[dict[str, str]]:
    return [{"node": f"{word}{number}"} for number in range(count)]


HOSTILE: dict[str, dict[str, Any]] = {
    "10,000 by 10,000 selectors": {"include": nodes(10_000, "a"), "exclude": nodes(10_000, "b")},
    "10,000 bad selectors": {"include": [{"nod": f"a{number}"} for number in range(10_000)]},
    "5,000 regular expressions": {"include": [{"regex": f"a{number}.*"} for number in range(5000)]},
    "megabytes of unknown keys": {f"key{number}": number for number in range(200_000)},
    "unknown keys of 10,000 characters": {f"{number}{LONG_NAME}": 1 for number in range(400)},
    "a repetition count too large": {"include": [{"regex": "a{100000}"}]},
    "an expression that fills memory": {"include": [{"regex": r"(\pL{500}|\pN{500}){500}"}]},
    "an expression with back-references": {"include": [{"regex": r"(a+)+\1"}]},
    "many in Quark's envelope": {"format": "quark", "config": {f"key{number}": number for number in range(200_000)}},
}


@pytest.mark.parametrize("route", [ROUTES[0], pytest.param(ROUTES[1], marks=pytest.mark.long)])
def test_a_config_that_is_too_much_is_refused(sqlite_front: Front, route: str) -> None:
    body = sqlite_front.job_body()
    for case, config in HOSTILE.items():
        told = problem(sqlite_front.http.post(route, json={**body, "config": config}), 422, "invalid-config")
        assert 1 <= len(told["errors"]) <= 21, case
        assert len(told["detail"]) < 200_000, case
    assert sqlite_front.http.get("/v1/jobs").json()["items"] == []


def test_deep_expressions_are_taken_and_long_wrong_names_told_without_guesses(sqlite_front: Front) -> None:
    model_id = sqlite_front.ready_model(model_summary(node_names=("conv",), prepared_op_types=()))
    wrong = {"exclude": [{"node": f"{LONG_NAME[:4000]}{number}"} for number in range(60)]}
    deep = {"exclude": [{"regex": "(" * 490 + "a" + ")" * 490}]}
    taken, refused = sqlite_front.job_body(config=deep), sqlite_front.job_body(model_id=model_id, config=wrong)
    for route in ROUTES:
        assert sqlite_front.http.post(route, json=taken).is_success
        told = problem(sqlite_front.http.post(route, json=refused), 422, "invalid-config")
        assert len(told["errors"]) == 20
        assert "did you mean" not in told["errors"][0]["message"]


@pytest.fixture
def writing(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.local]:
    """Whether the thread that asks has a write transaction open: its ``count``; others may write meanwhile."""
    opened = threading.local()
    real = sqlite_front.app.database.write

    @contextmanager
    def write() -> Iterator[Session]:
        with real() as session:
            opened.count = 1
            try:
                yield session
            finally:
                opened.count = 0

    monkeypatch.setattr(sqlite_front.app.database, "write", write)
    yield opened


def test_nothing_is_checked_while_others_may_not_write(sqlite_front: Front, writing, monkeypatch) -> None:
    seen: list[tuple[str, int]] = []
    checks = ("check_selected", "check_dataset", "check_evaluation", "placed")
    for name in checks:
        real = getattr(checking, name)

        def noted(*given: Any, name: str = name, real: Any = real, **named: Any) -> Any:
            seen.append((name, getattr(writing, "count", 0)))
            return real(*given, **named)

        monkeypatch.setattr(checking, name, noted)
    body = sqlite_front.job_body()
    answers = [
        sqlite_front.http.post("/v1/jobs", json=body, headers=key)
        for key in ({}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "k"})
    ]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert answers[1].json()["id"] == answers[2].json()["id"]
    assert Counter(seen) == {(name, 0): 2 for name in checks}, "a known key is answered without checking again"


def test_others_are_served_while_a_body_is_validated(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    release, validating, real = threading.Event(), [], bodies._record

    def record(model: Any, data: bytes) -> Any:
        if model is JobCreate and b"slow" in data:
            validating.append(threading.current_thread().name)
            assert release.wait(PATIENCE_SECONDS)
        return real(model, data)

    body = sqlite_front.job_body(labels={"kind": "slow"})
    monkeypatch.setattr(bodies, "_record", record)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(sqlite_front.http.post, "/v1/jobs", json=body) for _ in range(2)]
        try:
            while len(validating) < 2:
                assert sqlite_front.http.get("/healthz").status_code == 200
            for path in ("/healthz", "/v1/jobs", "/v1/models"):
                assert sqlite_front.http.get(path).status_code == 200
            assert not any(answer.done() for answer in answers)
        finally:
            release.set()
    assert [answer.result().status_code for answer in answers] == [202, 202]


def test_others_are_served_while_a_report_is_drawn(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask for it: those beyond the first two wait for their turn, and hold no thread."""
    release, drawing, real = threading.Event(), [], reports.rendered

    def rendered(*given: Any) -> bytes:
        drawing.append(threading.current_thread().name)
        assert release.wait(PATIENCE_SECONDS)
        return real(*given)

    path = f"/v1/jobs/{sqlite_front.succeeded_job()}/report.html"
    monkeypatch.setattr(reports, "rendered", rendered)
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(sqlite_front.http.get, path) for _ in range(20)]
        try:
            while len(drawing) < 2:
                assert sqlite_front.http.get("/healthz").status_code == 200
            assert sqlite_front.http.get("/v1/jobs").status_code == 200
            assert len(drawing) == 2
        finally:
            release.set()
    assert {200} <= {answer.result().status_code for answer in answers} <= {200, 503}


def test_strangers_are_given_no_work(sqlite_front: Front, monkeypatch) -> None:
    settings = Settings(data_dir=sqlite_front.app.settings.data_dir, api_key="0a1b2c3d4e5f-of-some-length")
    monkeypatch.setattr(bodies, "_record", lambda *_: pytest.fail("read for a stranger"))
    object.__setattr__(sqlite_front.app, "keyring", Keyring(settings, sqlite_front.app.database))
    problem(sqlite_front.http.post("/v1/jobs", content=b"{", headers=JSON), 401, "unauthorized")


JSON = {"Content-Type": "application/json"}


@each(
    "data",
    [
        b"[" * 100_000,
        b"\xff\xfe{",
        b'{"config": ' + b'{"a":' * 2000 + b"1" + b"}" * 2001,
        b'"' + b"a" * 1_000_000 + b'"',
        b"nul",
    ],
)
def test_what_is_no_document_is_told_so(sqlite_front: Front, data: bytes) -> None:
    answer = sqlite_front.http.post("/v1/jobs", content=data, headers=JSON)
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_no_job_has_so_many_labels(sqlite_front: Front) -> None:
    most = "&".join(f"label.k{number}=v" for number in range(32))
    assert sqlite_front.http.get(f"/v1/jobs?{most}").status_code == 200
    many = "&".join(f"label.k{number}=v" for number in range(40))
    told = problem(sqlite_front.http.get(f"/v1/jobs?{many}"), 422, "invalid-request")
    assert "32 labels" in told["hint"]
