"""How a request for an evaluation that was checked becomes a job, and a job such a request again."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from service.contracts.errors import problem_summary
from service.contracts.validation import field_problems
from service.deps import AppState
from service.estimates import repository as estimates
from service.idempotency.answers import Answer
from service.jobs import transitions
from service.jobs.errors import JobNotEndedError, NotRepeatableError
from service.jobs.evaluations.checking import CheckedEvaluation
from service.jobs.evaluations.schemas import EvaluationCreate
from service.jobs.repeats import merged, no_request
from service.jobs.schemas import TERMINAL
from service.jobs.submission import accepted
from service.jobs.views import JobView
from service.names import repository as names
from service.names.kinds import DATASETS, MODELS
from service.principal import Principal
from service.quotas import service as quotas
from service.tables import Job

# What of a job's row its request consisted of, but what is measured.
_FIELDS = ("model_id", "reference_model_id", "evaluation_dataset_id", "priority", "name", "labels")


def store_evaluation(app: AppState, session: Session, by: Principal, given: CheckedEvaluation) -> tuple[Answer, Job]:
    """Store what was checked.

    Raises:
        QuotaExceededError: the tenant has as many jobs as it may.
        ModelNotFoundError, DatasetNotFoundError: something was deleted since it was checked.
    """
    asked = given.asked
    graphs = [("/evaluation", graph) for graph in asked.evaluation.graph_models]
    reference = [] if asked.reference_model_id is None else [("/reference_model_id", asked.reference_model_id)]
    names.hold(session, MODELS, by.tenant_id, [("/model_id", asked.model_id), *reference, *graphs])
    names.hold(session, DATASETS, by.tenant_id, [("/evaluation_dataset_id", asked.evaluation_dataset_id)])
    quotas.admit_jobs(session, app.settings, by.tenant_id)
    job = transitions.submit(
        session,
        tenant_id=by.tenant_id,
        kind="evaluate",
        priority=asked.priority,
        size_class=given.size_class,
        model_id=asked.model_id,
        reference_model_id=asked.reference_model_id,
        evaluation_dataset_id=asked.evaluation_dataset_id,
        config={"evaluation": given.spec},
        name=asked.name,
        labels=asked.labels,
        retry_of=given.origin.retry_of,
        cloned_from=given.origin.cloned_from,
        deadline_seconds=app.settings.job_deadline_seconds,
        request_id=by.request_id,
    )
    estimates.add(session, job, given.estimate.row)
    view = JobView(job, model=given.model, estimate=given.estimate.row["told"], finish_at=given.finish_at)
    return accepted(view), job


def same_evaluation(job: Job) -> EvaluationCreate:
    """The request of an evaluate job that has ended.

    Raises:
        JobNotEndedError: it is still queued or running.
        NotRepeatableError: what it asked for is no longer accepted.
    """
    if job.state not in TERMINAL:
        raise JobNotEndedError(job.id, job.state, hint="Wait for its end, or cancel it: POST /v1/jobs/{id}/cancel.")
    try:
        return EvaluationCreate.model_validate(_document(job))
    except ValidationError as error:
        told = problem_summary(field_problems(error, EvaluationCreate))
        raise NotRepeatableError(
            f"What the job {job.id} was asked for is no longer accepted: {told}",
            hint="Ask for another evaluation: POST /v1/evaluations.",
        ) from None


def changed_evaluation(job: Job, patch: dict[str, Any]) -> EvaluationCreate:
    """The request of an evaluate job with changes.

    Args:
        job: in any state.
        patch: a JSON merge patch (RFC 7396) of its request: null takes a field away.

    Raises:
        InvalidRequestError: what comes out is no request; its problems point into the merged one.
    """
    request = merged({name: value for name, value in _document(job).items() if value is not None}, patch)
    try:
        return EvaluationCreate.model_validate(request)
    except ValidationError as error:
        raise no_request(error, EvaluationCreate) from None


def _document(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _FIELDS} | {"evaluation": (job.config or {})["evaluation"]}
