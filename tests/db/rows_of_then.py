"""Rows in a schema of another time: written by its own columns, not by today's tables."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import JSON, String, inspect, text
from sqlalchemy.orm import Session

from service.inspections import repository as inspections
from service.jobs import transitions
from service.resources import new_id
from service.tables import InspectionRow


def insert_row(session: Session, table: str, **values: Any) -> None:
    """Insert a row; columns that must have a value and got none are filled with one of their type."""
    filled: dict[str, Any] = {}
    for column in inspect(session.connection()).get_columns(table):
        name, kind = column["name"], column["type"]
        if name in values:
            value = values[name]
            filled[name] = json.dumps(value) if isinstance(kind, JSON) and value is not None else value
        elif not column["nullable"] and column["default"] is None and "computed" not in column:
            word = "default" if name == "tenant_id" else "x"
            filled[name] = "{}" if isinstance(kind, JSON) else word if isinstance(kind, String) else 1
    assert set(values) <= set(filled), f"{table} has no {set(values) - set(filled)}"
    places = ", ".join(f":{name}" for name in filled)
    session.execute(text(f"INSERT INTO {table} ({', '.join(filled)}) VALUES ({places})"), filled)


def insert_job(session: Session, **values: Any) -> str:
    """A queued quantize job with its model and its dataset, unless told otherwise; returns its id."""
    job_id, model_id, dataset_id = new_id("job"), new_id("mdl"), new_id("dst")
    tenant_id = values.get("tenant_id", "default")
    insert_row(session, "models", id=model_id, name=model_id, tenant_id=tenant_id, format="onnx", status="validating")
    insert_row(
        session, "datasets", id=dataset_id, name=dataset_id, tenant_id=tenant_id, format="npz", status="validating"
    )
    job = {
        "id": job_id, "tenant_id": tenant_id, "kind": "quantize", "state": "queued", "queue": "cpu", "attempt": 0,
        "interruptions": 0, "model_id": model_id, "calibration_dataset_id": dataset_id, "config": {}, "last_seq": 1,
        "max_attempts": 3,
    }  # fmt: skip
    insert_row(session, "jobs", **{**job, **values})
    insert_row(session, "job_events", job_id=job_id, seq=1, attempt=0, type="state", data={"name": "job.queued"})
    return job_id


def insert_succeeded(session: Session, **values: Any) -> str:
    """A succeeded quantize job with its report and one artifact; returns its id."""
    ended = {"state": "succeeded", "attempt": 1, "finished_at": 2.0}
    job_id = insert_job(session, **{**ended, **values})
    insert_row(session, "reports", job_id=job_id, attempt=1, verdict="none")
    made = {"id": new_id("art"), "tenant_id": values.get("tenant_id", "default"), "kind": "model"}
    insert_row(session, "artifacts", job_id=job_id, attempt=1, **made)
    return job_id


def add_inspection(session: Session, model_id: str) -> InspectionRow:
    job = transitions.submit(
        session,
        transitions.NewJob(tenant_id="default", kind="inspect_target", model_id=model_id, config={"target": "qnn"}),
    )
    return inspections.create(session, job, config_sha256="0" * 64)
