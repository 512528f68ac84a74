"""Tenants: what is another's is not there, on every route of the document, and no statement is without its tenant."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.attestations import repository as attestations
from service.jobs import events
from service.jobs import repository as jobs
from service.resources import new_id
from service.tables import Attestation, Base, JobEvent, Model, ModelFile, ReportRow
from tests.api.test_quarantine import quarantine
from tests.security.conftest import bearer, make_key
from tests.support.front import Front, problem

ALIAS = "production"
SERVICE = Path(__file__).parents[2] / "service"
# Written by the key's own use, and by nothing that it asks for.
_OF_KEYS = ("api_keys", "alembic_version")


@dataclass
class Estate:
    """What the default tenant has, by the name of the parameter that names it."""

    front: Front
    ids: dict[str, str]
    foreign: dict[str, str]

    def ask(self, method: str, path: str, **request: Any) -> Any:
        """As the other tenant."""
        headers = {"Upload-Offset": "0", **self.foreign}
        return self.front.http.request(method, path, headers=headers, **request)


# What has to be sent to where another body is refused first.
TARGETS = {"targets": [{"kind": "post", "url": "https://hooks.invalid/"}]}


@pytest.fixture
def estate(front: Front) -> Estate:
    model_id, job_id = front.ready_model(), front.succeeded_job()
    inspection = front.http.post(f"/v1/models/{model_id}/inspect", json={}).json()
    artifact = front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]
    assert front.http.get(f"/v1/jobs/{job_id}/attestation").status_code == 200
    assert front.http.post(f"/v1/jobs/{job_id}/hand-over", json=TARGETS).status_code == 202
    open_upload = front.http.post("/v1/uploads", json={"filename": "a.bin", "size_bytes": 4}).json()
    webhook = front.http.post("/v1/webhooks", json={"url": "https://hooks.invalid/"}).json()
    delivery = front.http.post(f"/v1/webhooks/{webhook['id']}/ping").json()
    dataset_id = front.ready_dataset()
    template = {"model_id": model_id, "calibration_dataset_id": dataset_id}
    body = {"name": "nightly", "cron": "0 2 * * *", "template": template}
    schedule = front.http.post("/v1/schedules", json=body).json()
    run = front.http.post(f"/v1/schedules/{schedule['id']}/run").json()
    for path in (f"models/{model_id}", f"datasets/{dataset_id}"):
        assert front.http.put(f"/v1/{path}/aliases/{ALIAS}", headers={"If-None-Match": "*"}).status_code == 201
    batch = front.http.post("/v1/batches", json={"members": [front.job_body()]}).json()
    assert front.http.post(f"/v1/batches/{batch['id']}/cancel").status_code == 200
    ids = {
        "schedule_id": schedule["id"], "run_id": run["id"], "batch_id": batch["id"], "webhook_id": webhook["id"],
        "delivery_id": delivery["id"], "alias": ALIAS, "upload_id": open_upload["id"], "model_id": model_id,
        "dataset_id": dataset_id, "job_id": job_id, "inspection_id": inspection["id"], "artifact_id": artifact["id"],
        "digest": quarantine(front, front.ready_model()),
        "key_id": front.http.post("/v1/keys", json={"name": "k"}).json()["id"],
    }  # fmt: skip
    return Estate(front, ids, bearer(make_key(front, "admin", "other")[1]))


def contents(front: Front) -> dict[str, list[str]]:
    with front.app.database.read() as session:
        names = [name for name in Base.metadata.tables if name not in _OF_KEYS]
        return {name: sorted(map(repr, session.execute(text(f"SELECT * FROM {name}")).all())) for name in names}


def by_id(front: Front) -> list[tuple[str, str]]:
    document = front.http.get("/openapi.json").json()
    operations = [(m.upper(), path) for path, found in document["paths"].items() for m in found if "{" in path]
    # of the installation, not of a tenant
    return [place for place in operations if not any(name in place[1] for name in ("{name}", "{tenant}"))]


def test_what_is_anothers_is_not_there_on_any_route(estate: Estate) -> None:
    before = contents(estate.front)
    operations = by_id(estate.front)
    assert len(operations) >= 20
    for method, path in operations:
        reading = method in ("GET", "HEAD")
        own = estate.front.http.request(method if reading else "OPTIONS", path.format(**estate.ids))
        body = TARGETS if path.endswith("/hand-over") else {}
        request: dict[str, Any] = {} if reading else {"content": b"1234"} if "uploads" in path else {"json": body}
        answer = estate.ask(method, path.format(**estate.ids), **request)
        missing = estate.ask(method, path.format(**{n: _other(v) for n, v in estate.ids.items()}), **request)
        assert answer.status_code == missing.status_code == 404, f"{method} {path}: {answer.status_code} {answer.text}"
        if method != "HEAD":
            assert answer.json()["code"] == missing.json()["code"], "a foreign id is told as one that is not there"
            assert own.status_code != 404 or own.json()["code"] != answer.json()["code"], (
                f"{path} asks for something else"
            )
    for path in ("models", "datasets", "jobs", "quarantine", "schedules", "webhooks"):
        assert estate.front.http.get(f"/v1/{path}").json()["items"], path
        assert estate.ask("GET", f"/v1/{path}").json()["items"] == [], path
    assert contents(estate.front) == before


def _other(known: str) -> str:
    return known[:-4] + ("0000" if not known.endswith("0000") else "1111")


def test_what_is_anothers_is_not_there_in_any_body(estate: Estate) -> None:
    """Neither by its id, its name, a key of another's, nor the digest of a file."""
    front, data = estate.front, b"the bytes of a file"
    file = front.upload(data)
    before = contents(front)
    for noun, name in (("model", "tiny"), ("dataset", "data")):
        for word in ("1", "latest", ALIAS):
            assert front.http.get(f"/v1/{noun}s/{name}@{word}").status_code == 200
            foreign = problem(estate.ask("GET", f"/v1/{noun}s/{name}@{word}"), 404, f"{noun}-not-found")
            assert "did you mean" not in foreign["detail"]
    model, dataset, job = (estate.ids[name] for name in ("model_id", "dataset_id", "job_id"))
    template = {"model_id": model, "calibration_dataset_id": dataset}
    named = {"model_id": f"tiny@{ALIAS}", "calibration_dataset_id": "data@latest"}
    for path, body, code in (
        ("models", {"name": "m", "files": [{"upload_id": file, "path": "model.onnx"}]}, "upload-not-found"),
        ("datasets", {"name": "d", "upload_id": file, "format": "npz"}, "upload-not-found"),
        ("jobs", template, "model-not-found"),
        ("jobs", named, "model-not-found"),
        ("schedules", {"name": "s", "cron": "0 2 * * *", "template": template}, "model-not-found"),
        ("evaluations", {"model_id": model, "evaluation_dataset_id": dataset}, "model-not-found"),
        ("jobs:validate", template, "model-not-found"),
        ("jobs", {**template, "ranges_from": job}, "job-not-found"),
    ):
        problem(estate.ask("POST", f"/v1/{path}", json=body), 404, code)
    assert contents(front) == before
    known = {"filename": "a", "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert front.http.post("/v1/uploads", json=known).json()["state"] == "complete"
    assert estate.ask("POST", "/v1/uploads", json=known).json()["state"] == "open", "nobody is told who has it"
    headers = {"Idempotency-Key": "same"}
    body = {"name": "m", "files": [{"upload_id": file, "path": "model.onnx"}]}
    assert front.http.post("/v1/models", json=body, headers=headers).status_code == 201
    answer = front.http.post("/v1/models", json=body, headers=headers | estate.foreign)
    problem(answer, 404, "upload-not-found")


@pytest.mark.both_databases
def test_the_database_holds_every_row_and_its_parts_to_one_tenant(estate: Estate) -> None:
    database, ids = estate.front.app.database, estate.ids

    @contextmanager
    def refused() -> Iterator[Session]:
        with pytest.raises(IntegrityError, match=r"(?i)foreign key"), database.write() as session:
            yield session

    keys = [key for table in Base.metadata.tables.values() for key in table.foreign_key_constraints]
    bound = {table for key in keys if "tenant_id" in key.column_keys for table in (key.table, key.referred_table)}
    for table in bound:
        with database.read() as session:
            assert set(session.scalars(select(table.c.tenant_id))) == {"default"}
        with refused() as session:
            session.execute(update(table).values(tenant_id="other"))
    with database.read() as session:
        model = session.get_one(Model, ids["model_id"])
    values = {column.name: getattr(model, column.name) for column in Model.__table__.columns}
    values |= {"id": new_id("mdl"), "tenant_id": "other", "skeleton_model_id": model.id, "version": 2}
    with refused() as session:
        session.execute(insert(Model).values(values))
    # not even a part that would be new to what it says it is a part of
    parts: tuple[tuple[Any, dict[str, Any]], ...] = (
        (JobEvent, {"seq": 1000}), (ModelFile, {"path": "other.bin", "is_main": False}), (ReportRow, {}),
        (Attestation, {}),
    )  # fmt: skip
    for part, fresh in parts:
        with database.read() as session:
            values = dict(session.execute(select(*part.__table__.columns).limit(1)).mappings().one())
        with refused() as session:
            for only in {ReportRow: ("artifacts", "reports"), Attestation: ("attestations",)}.get(part, ()):
                session.execute(text(f"DELETE FROM {only}"))
            session.execute(insert(part).values({**values, **fresh, "tenant_id": "other"}))
    # below what looks for the job, too: whoever forgets that finds nothing of others
    job_id = ids["job_id"]
    with database.read() as session:
        for tenant, there in (("default", True), ("other", False)):
            assert bool(events.list_after(session, tenant, job_id, 0, 10)) is there
            assert (jobs.report(session, tenant, job_id) is not None) is there
            assert bool(jobs.results(session, tenant, [job_id])) is there
            assert bool(jobs.artifacts(session, tenant, [job_id])) is there
            assert (attestations.attestation_of(session, tenant, job_id) is not None) is there
            assert bool(attestations.files_made(session, tenant, job_id)) is there
            assert bool(attestations.models_given(session, tenant, [ids["model_id"]])) is there
            assert bool(attestations.datasets_given(session, tenant, [ids["dataset_id"]])) is there


def test_one_place_filters_by_tenant() -> None:
    """A comparison with a tenant's id stands there alone: nobody can forget half of it."""
    places = set()
    for path in SERVICE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(
                isinstance(side, ast.Attribute) and side.attr == "tenant_id" for side in (node.left, *node.comparators)
            ):
                places.add(str(path.relative_to(SERVICE)))
    # keys and the audit are the installation's, and are asked for by tenant, which scopes allow; turns are of all
    assert places == {
        "repository.py", "keys/scopes.py", "keys/repository.py", "audit/repository.py", "dispatch/repository.py"
    }  # fmt: skip
