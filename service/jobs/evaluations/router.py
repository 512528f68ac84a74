"""HTTP face of evaluations; once submitted, they are jobs like all others."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep
from service.idempotency.answers import IdempotencyHeader
from service.jobs.evaluations import service
from service.jobs.evaluations.schemas import EvaluationCreate
from service.jobs.refusals import MATERIAL_REFUSALS
from service.jobs.schemas import JobOut
from service.responses import problems

router = APIRouter(route_class=ThreadedBodyRoute, tags=["jobs"])


@router.post("/v1/evaluations", status_code=202, response_model=JobOut, responses=problems(*MATERIAL_REFUSALS))
async def create_evaluation(
    body: EvaluationCreate,
    app: AppDep,
    principal: PrincipalDep,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Submit an evaluation: a model, quantized or not, is measured, beside another one if that is given.

    The answer is a job of kind ``evaluate``; all that is done to jobs is done to it under ``/v1/jobs/ID``.
    """
    return await app.writes.run(lambda: service.create(app, principal, body, key=idempotency_key).response())
