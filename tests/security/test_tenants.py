"""Tenants: what is another's is not there, on every route of the document, and no statement is without its tenant."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError

from service.attestations import repository as attestations
from service.ids import new_id
from service.jobs import events
from service.jobs import repository as jobs
from service.keys import service as keys
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal
from service.settings import Settings
from service.tables import Attestation, Base, Job, JobEvent, Model, ModelFile, ReportRow
from tests.api.conftest import app, front
from tests.api.test_quarantine import quarantine
from tests.support.front import Front, problem

__all__ = ["app", "front"]
ALIAS = "production"
PEPPER = "0a1b2c3d4e5f-of-some-length"
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
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0, key_pepper=PEPPER)


@pytest.fixture
def estate(front: Front) -> Iterator[Estate]:
    by = Principal(DEFAULT_TENANT, COMMAND_LINE, "admin")
    with front.desk.database.write() as session:
        made = keys.create(session, PEPPER, by, tenant_id="other", name="ci", scope="manage", days=None)
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
        "schedule_id": schedule["id"],
        "run_id": run["id"],
        "batch_id": batch["id"],
        "webhook_id": webhook["id"],
        "delivery_id": delivery["id"],
        "alias": ALIAS,
        "upload_id": open_upload["id"],
        "model_id": model_id,
        "dataset_id": dataset_id,
        "job_id": job_id,
        "inspection_id": inspection["id"],
        "artifact_id": artifact["id"],
        "digest": quarantine(front, front.ready_model()),
    }
    yield Estate(front, ids, {"Authorization": f"Bearer {made.text}"})


def contents(front: Front) -> dict[str, list[str]]:
    """All rows of all tables."""
    with front.desk.database.read() as session:
        names = [name for name in Base.metadata.tables if name not in _OF_KEYS]
        return {name: sorted(map(repr, session.execute(text(f"SELECT * FROM {name}")).all())) for name in names}


def by_id(front: Front) -> list[tuple[str, str]]:
    """Every operation whose path names something by an id."""
    document = front.http.get("/openapi.json").json()
    operations = [(m.upper(), path) for path, found in document["paths"].items() for m in found if "{" in path]
    # of the installation, not of a tenant
    return [place for place in operations if not any(name in place[1] for name in ("{name}", "{tenant}"))]


def test_another_tenants_id_is_no_id_on_any_route(estate: Estate) -> None:
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
    assert contents(estate.front) == before


def _other(known: str) -> str:
    """An id of the same form that nobody has."""
    return known[:-4] + ("0000" if not known.endswith("0000") else "1111")


def test_another_tenants_names_are_no_names(estate: Estate) -> None:
    """Neither in paths nor in bodies; nor is one told as near to what was asked for."""
    before = contents(estate.front)
    for noun, name in (("model", "tiny"), ("dataset", "data")):
        for word in ("1", "latest", ALIAS):
            assert estate.front.http.get(f"/v1/{noun}s/{name}@{word}").status_code == 200
            foreign = problem(estate.ask("GET", f"/v1/{noun}s/{name}@{word}"), 404, f"{noun}-not-found")
            assert "did you mean" not in foreign["detail"]
            body = {"model_id": f"{name}@{word}", "calibration_dataset_id": f"{name}@{word}"}
            problem(estate.ask("POST", "/v1/jobs", json=body), 404, "model-not-found")
    assert contents(estate.front) == before


def test_another_tenants_file_is_not_known(estate: Estate) -> None:
    """Whether somebody has a file is not told, and nobody gets it by its digest."""
    data = b"the bytes of a file"
    estate.front.upload(data)
    body = {"filename": "a", "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert estate.front.http.post("/v1/uploads", json=body).json()["state"] == "complete"
    assert estate.ask("POST", "/v1/uploads", json=body).json()["state"] == "open"


def test_another_tenants_ids_in_bodies_are_no_ids(estate: Estate) -> None:
    file = estate.front.upload()
    before = contents(estate.front)
    model, data, job = (estate.ids[name] for name in ("model_id", "dataset_id", "job_id"))
    files = [{"upload_id": file, "path": "model.onnx"}]
    for path, body, code in (
        ("/v1/models", {"name": "m", "files": files}, "upload-not-found"),
        ("/v1/datasets", {"name": "d", "upload_id": file, "format": "npz"}, "upload-not-found"),
        ("/v1/jobs", {"model_id": model, "calibration_dataset_id": data}, "model-not-found"),
        (
            "/v1/schedules",
            {"name": "s", "cron": "0 2 * * *", "template": {"model_id": model, "calibration_dataset_id": data}},
            "model-not-found",
        ),
        ("/v1/evaluations", {"model_id": model, "evaluation_dataset_id": data}, "model-not-found"),
        ("/v1/jobs:validate", {"model_id": model, "calibration_dataset_id": data}, "model-not-found"),
        ("/v1/jobs", {"model_id": model, "calibration_dataset_id": data, "ranges_from": job}, "job-not-found"),
    ):
        problem(estate.ask("POST", path, json=body), 404, code)
    assert contents(estate.front) == before


def test_lists_hold_ones_own(estate: Estate) -> None:
    for path in ("/v1/models", "/v1/datasets", "/v1/jobs", "/v1/quarantine", "/v1/schedules", "/v1/webhooks"):
        assert estate.front.http.get(path).json()["items"], path
        assert estate.ask("GET", path).json()["items"] == [], path


def test_an_idempotency_key_of_another_tenant_is_free(estate: Estate) -> None:
    headers = {"Idempotency-Key": "same"}
    body = {"name": "m", "files": [{"upload_id": estate.front.upload(b"others"), "path": "model.onnx"}]}
    assert estate.front.http.post("/v1/models", json=body, headers=headers).status_code == 201
    answer = estate.front.http.post("/v1/models", json=body, headers=headers | estate.foreign)
    problem(answer, 404, "upload-not-found")


@pytest.mark.parametrize(
    "column", ["model_id", "reference_model_id", "dataset_id", "calibration_dataset_id", "evaluation_dataset_id"]
)
def test_the_database_refuses_a_job_of_anothers_nouns(estate: Estate, column: str) -> None:
    noun = estate.ids["dataset_id" if "dataset" in column else "model_id"]
    database = estate.front.desk.database
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Job).where(Job.id == estate.ids["job_id"]).values({column: noun, "tenant_id": "other"}))


# Tables whose rows name others or are named, by keys that hold both to one tenant.
BOUND = sorted(
    {
        table.name
        for key in (key for table in Base.metadata.tables.values() for key in table.foreign_key_constraints)
        if "tenant_id" in key.column_keys
        for table in (key.table, key.referred_table)
    }
)


def test_every_part_of_a_tenants_things_is_bound() -> None:
    assert BOUND == [
        "alias_moves", "aliases", "artifacts", "attestations", "batch_members", "batches", "datasets", "hand_overs",
        "inspections", "job_estimates", "job_events", "jobs", "model_files", "models", "names", "reports",
        "schedule_runs", "schedules", "webhook_deliveries", "webhook_endpoints",
    ]  # fmt: skip


@pytest.mark.parametrize("name", BOUND)
def test_the_database_lets_no_row_change_hands(estate: Estate, name: str) -> None:
    """Nothing that another row names, or that names another."""
    table, database = Base.metadata.tables[name], estate.front.desk.database
    with database.read() as session:
        assert set(session.scalars(select(table.c.tenant_id))) == {"default"}
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"), database.write() as session:
        session.execute(update(table).values(tenant_id="other"))


@pytest.mark.parametrize("table", [JobEvent, ModelFile, ReportRow, Attestation])
def test_the_database_takes_no_part_of_anothers_things(estate: Estate, table: Any) -> None:
    """Not even one that would be new to what it says it is a part of."""
    columns, database = table.__table__.columns, estate.front.desk.database
    with database.read() as session:
        values = dict(session.execute(select(*columns).limit(1)).mappings().one())
    fresh = {JobEvent: {"seq": 1000}, ModelFile: {"path": "other.bin", "is_main": False}, ReportRow: {}}.get(table, {})
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"), database.write() as session:
        if table is ReportRow:  # there can be one only
            session.execute(text("DELETE FROM artifacts"))
            session.execute(text("DELETE FROM reports"))
        if table is Attestation:
            session.execute(text("DELETE FROM attestations"))
        session.execute(insert(table).values({**values, **fresh, "tenant_id": "other"}))
    with database.read() as session:
        assert set(session.scalars(select(table.tenant_id))) == {"default"}


def test_parts_are_read_by_their_tenant(estate: Estate) -> None:
    """Also below what looks for the job: whoever forgets that finds nothing of others."""
    job_id = estate.ids["job_id"]
    with estate.front.desk.database.read() as session:
        for tenant, there in (("default", True), ("other", False)):
            assert bool(events.list_after(session, tenant, job_id, 0, 10)) is there
            assert (jobs.report(session, tenant, job_id) is not None) is there
            assert bool(jobs.results(session, tenant, [job_id])) is there
            assert bool(jobs.artifacts(session, tenant, [job_id])) is there
            assert (attestations.attestation_of(session, tenant, job_id) is not None) is there
            assert bool(attestations.files_made(session, tenant, job_id)) is there
            assert bool(attestations.models_given(session, tenant, [estate.ids["model_id"]])) is there
            assert bool(attestations.datasets_given(session, tenant, [estate.ids["dataset_id"]])) is there


def test_a_version_is_of_its_skeletons_tenant(estate: Estate) -> None:
    with estate.front.desk.database.read() as session:
        model = session.get_one(Model, estate.ids["model_id"])
    values = {column.name: getattr(model, column.name) for column in Model.__table__.columns}
    values |= {"id": new_id("mdl"), "tenant_id": "other", "skeleton_model_id": model.id, "version": 2}
    with pytest.raises(IntegrityError), estate.front.desk.database.write() as session:
        session.execute(insert(Model).values(values))


def test_one_place_filters_by_tenant() -> None:
    """A comparison with a tenant's id stands there alone: nobody can forget half of it."""
    places = set()
    for path in SERVICE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(
                isinstance(side, ast.Attribute) and side.attr == "tenant_id" for side in (node.left, *node.comparators)
            ):
                places.add(str(path.relative_to(SERVICE)))
    # keys and the audit are the installation's, and are asked for by tenant
    assert places == {"tenancy.py", "keys/repository.py", "audit/repository.py"}
