"""HTTP face of comparisons."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from service.comparison import service
from service.comparison.schemas import MOST_JOBS, MOST_LISTED, Comparison
from service.comparison.table import comparison_csv
from service.contracts.errors import InvalidRequestError
from service.deps import AppDep, PrincipalDep
from service.http import Responses, only_parameters, problems
from service.jobs.errors import JobNotFoundError
from service.jobs.service import ReportNotFoundError, ReportNotReadyError
from service.reports.reading import ReportNotRenderableError

router = APIRouter(prefix="/v1", tags=["jobs"])

_JOBS = f"A job's id; 2 to {MOST_JOBS} of them. The first one is the baseline."
Jobs = Annotated[list[str], Query(alias="job", min_length=2, max_length=MOST_JOBS, description=_JOBS)]
_REFUSALS = (JobNotFoundError, ReportNotReadyError, ReportNotFoundError, ReportNotRenderableError)
_CSV: dict[str, Any] = {"description": "The table", "content": {"text/csv": {"schema": {"type": "string"}}}}
_CSV_RESPONSES: Responses = {200: _CSV}


@router.get("/compare", dependencies=[Depends(only_parameters("job", "flips"))], responses=problems(*_REFUSALS))
async def compare_jobs(
    job: Jobs,
    app: AppDep,
    principal: PrincipalDep,
    flips: Annotated[int, Query(ge=0, le=MOST_LISTED, description="Prediction flips to list per pair.")] = 50,
) -> Comparison:
    """Compare jobs: configs, metrics with intervals, prediction flips, size, latency, layers."""
    asked = _each_once(job)
    return await app.heavy.run(lambda: service.compare(app, principal.tenant_id, asked, most_flips=flips))


@router.get(
    "/compare.csv",
    response_class=Response,
    dependencies=[Depends(only_parameters("job"))],
    responses=_CSV_RESPONSES | problems(*_REFUSALS),
)
async def compare_jobs_csv(job: Jobs, app: AppDep, principal: PrincipalDep) -> Response:
    """Compare jobs, as CSV: one row per job."""
    asked = _each_once(job)
    text = await app.heavy.run(lambda: comparison_csv(service.compare(app, principal.tenant_id, asked, most_flips=0)))
    headers = {"Content-Disposition": 'attachment; filename="comparison.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(text.encode(), media_type="text/csv; charset=utf-8", headers=headers)


def _each_once(job_ids: list[str]) -> list[str]:
    """The ids as they were given.

    Raises:
        InvalidRequestError: one was given twice.
    """
    if len(set(job_ids)) < len(job_ids):
        raise InvalidRequestError("A job was given twice.", hint="Give each job once: ?job=A&job=B.")
    return job_ids
