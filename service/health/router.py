"""HTTP routes of health: liveness, readiness, version."""

from __future__ import annotations

import platform
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.contracts.base import VERSION
from service.contracts.config import CONFIG_SCHEMA_VERSION
from service.contracts.report import REPORT_SCHEMA_VERSION
from service.db import head_revision
from service.deps import AppDep
from service.health.service import Outcome

router = APIRouter(tags=["service"])


class Health(BaseModel):
    """Liveness: the process responds."""

    status: Literal["ok"] = "ok"


class CheckOut(BaseModel):
    """Result of one check."""

    outcome: Outcome
    detail: str


class Readiness(BaseModel):
    """Readiness: whether requests can be served."""

    status: Literal["ready", "not-ready"]
    checks: dict[str, CheckOut]


class Version(BaseModel):
    """Version of the service."""

    name: Literal["quantmill"] = "quantmill"
    version: str
    api: Literal["v1"] = "v1"
    schema_revision: str = Field(description="Database schema that this version requires.")
    config_schema_version: int
    report_schema_version: int
    python: str


@router.get("/healthz")
async def healthz() -> Health:
    """Check liveness: the process responds. Does not check dependencies, so a database outage causes no restarts."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready"}})
async def readyz(app: AppDep, response: Response) -> Readiness:
    """Check readiness: database, schema, storage, disk. An unreachable broker only degrades the service, because jobs
    are
    still accepted; the same applies to a newer schema during an update.
    """
    checks = await app.readiness.check_all()
    ready = all(check.outcome != "failed" for check in checks)
    response.status_code = 200 if ready else 503
    response.headers["Cache-Control"] = "no-store"
    return Readiness(
        status="ready" if ready else "not-ready",
        checks={check.name: CheckOut(outcome=check.outcome, detail=check.detail) for check in checks},
    )


@router.get("/v1/version")
def get_version() -> Version:
    """Get the version of the service."""
    return Version(
        version=VERSION,
        schema_revision=head_revision(),
        config_schema_version=CONFIG_SCHEMA_VERSION,
        report_schema_version=REPORT_SCHEMA_VERSION,
        python=platform.python_version(),
    )
