"""Jobs: checked before anything is stored, then job, event and idempotency key in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from service.audit.service import note
from service.contracts.compatibility import check_dataset, check_float, check_selected
from service.contracts.data_checks import check_data_given
from service.contracts.dataset import DatasetSummary
from service.contracts.errors import QuantmillError
from service.contracts.evaluation_checks import EVALUATION_POINTER, check_evaluation
from service.contracts.graph_checks import GraphFed, check_graph
from service.contracts.http_errors import TransientError
from service.contracts.metrics import GraphMetric
from service.contracts.model import ModelSummary, TensorInfo
from service.contracts.preparation import fixed_inputs
from service.contracts.references import SIGN
from service.contracts.training_checks import check_training, graph_losses
from service.datasets import repository as datasets
from service.datasets import service as dataset_service
from service.deps import Desk
from service.idempotency.answers import Answer
from service.idempotency.service import Work, submit_checked
from service.jobs import events, repository, transitions
from service.jobs.placement import Materials, Placement, placed
from service.jobs.ranges import taken_over
from service.jobs.references import hold, with_ids
from service.jobs.repeats import changed_request, same_request
from service.jobs.repository import JobQuery
from service.jobs.reuse import result_digest
from service.jobs.schemas import TERMINAL, JobCreate, JobValidate, JobValidated
from service.jobs.views import JobView, job_out, shown_state
from service.jobs.waiting import waiting_for
from service.models import repository as models
from service.models import service as model_service
from service.names.kinds import MODELS
from service.names.service import identify
from service.pagination import Position
from service.principal import Principal
from service.quarantine import suspects as quarantine
from service.quotas import repository as usage
from service.quotas import service as quotas
from service.tables import Job, JobEvent, ReportRow

_ROUTE = "POST /v1/jobs"


class ReportNotReadyError(TransientError):
    """The job has not ended yet."""

    code = "report-not-ready"
    title = "The report is not there yet"
    status = 409
    retry_after_seconds = 2


class ReportNotFoundError(QuantmillError):
    """The job ended without a report."""

    code = "report-not-found"
    title = "The job has no report"
    status = 404


@dataclass(frozen=True)
class Origin:
    """What a request was made of.

    Attributes:
        route: that it came by.
        retry_of: the job that it repeats.
        cloned_from: the job whose request it changes.
    """

    route: str = _ROUTE
    retry_of: str | None = None
    cloned_from: str | None = None


def create(desk: Desk, by: Principal, body: JobCreate, *, key: str | None, origin: Origin = Origin()) -> Answer:
    """Store a job and have it run; with a key known from before, answer as then.

    Args:
        desk: of the process.
        by: who asks.
        body: the request.
        key: its Idempotency-Key.
        origin: what it was made of.

    Raises:
        QuantmillError: something about the request is wrong; nothing was stored.
    """

    def checked(session: Session) -> Work:
        with body.pointing_into_request():
            asked = with_ids(session, by.tenant_id, body)
        asked = asked.model_copy(update={"config": taken_over(session, by.tenant_id, asked)})
        with body.pointing_into_request():
            placement = placed(session, desk.settings, asked, _check(session, by.tenant_id, asked))
        config = asked.config.model_dump(mode="json")
        digest = result_digest(session, by.tenant_id, asked, config)
        return lambda writing: _submit(desk, writing, by, asked, config, placement, digest, origin)

    return submit_checked(desk, by, origin.route, key, body, checked)


def retry(desk: Desk, by: Principal, job_id: str, *, key: str | None) -> Answer:
    """Ask for a job that has ended once more, unchanged.

    Raises:
        JobNotFoundError: the tenant has no such job.
        JobNotEndedError: it is still queued or running.
        NotRepeatableError: it was no client's request, or its config is no longer accepted.
        QuantmillError: as for ``create``.
    """
    route = f"POST /v1/jobs/{job_id}/retry"
    body = same_request(get(desk, by.tenant_id, job_id).job)
    return create(desk, by, body, key=key, origin=Origin(route, retry_of=job_id))


def clone(desk: Desk, by: Principal, job_id: str, patch: dict[str, Any], *, key: str | None) -> Answer:
    """Ask for what a job was asked for, with changes.

    Raises:
        JobNotFoundError: the tenant has no such job.
        NotRepeatableError: it was no client's request.
        QuantmillError: as for ``create``.
    """
    route = f"POST /v1/jobs/{job_id}/clone"
    body = changed_request(get(desk, by.tenant_id, job_id).job, patch)
    return create(desk, by, body, key=key, origin=Origin(route, cloned_from=job_id))


def _submit(
    desk: Desk,
    session: Session,
    by: Principal,
    asked: JobCreate,
    config: dict[str, Any],
    placement: Placement,
    digest: str,
    origin: Origin,
) -> tuple[Answer, Job | None]:
    """Store what was checked; whether the model is in quarantine since then is asked by who begins the job.

    Returns:
        The answer, and the job that is to be run; None: one was there whose result will do.
    """
    hold(session, by.tenant_id, asked)
    if asked.reuse:
        usage.hold(session, by.tenant_id)  # of two that ask at once, the second finds the first's
        there = repository.same_result(session, by.tenant_id, digest)
        if there is not None:
            return _reused(views(desk, session, by.tenant_id, [there])[0]), None
    quotas.admit_job(session, desk.settings, by.tenant_id)
    job = transitions.submit(
        session,
        tenant_id=by.tenant_id,
        kind="quantize",
        queue=placement.queue,
        priority=asked.priority,
        size_class=placement.size_class,
        device=asked.device,
        model_id=asked.model_id,
        calibration_dataset_id=asked.calibration_dataset_id,
        evaluation_dataset_id=asked.evaluation_dataset_id,
        config=config,
        name=asked.name,
        labels=asked.labels,
        retry_of=origin.retry_of,
        cloned_from=origin.cloned_from,
        fingerprint=digest,
        deadline_seconds=desk.settings.job_deadline_seconds,
        request_id=by.request_id,
    )
    for told in asked.translation_notes:
        events.append(session, job.id, 0, "log", {"level": "info", "message": f"translated config: {told}"})
    if asked.ranges_from is not None:
        message = f"tensor_ranges: the calibrated ranges of {asked.ranges_from} are taken over"
        events.append(session, job.id, 0, "log", {"level": "info", "message": message})
    return _accepted(views(desk, session, by.tenant_id, [job])[0]), job


def check(desk: Desk, tenant_id: str, body: JobValidate) -> JobValidated:
    """Check a request without storing anything.

    Raises:
        QuantmillError: as for ``create``.
    """
    with desk.database.read() as session:
        with body.pointing_into_request():
            asked = with_ids(session, tenant_id, body)
        asked = asked.model_copy(update={"config": taken_over(session, tenant_id, asked)})
        with body.pointing_into_request():
            placement = placed(session, desk.settings, asked, _check(session, tenant_id, asked))
    return JobValidated(
        config=asked.config,
        warnings=[*_warnings(asked), *placement.warnings],
        device=placement.device,
        queue=placement.queue,
        size_class=placement.size_class,
    )


def get(desk: Desk, tenant_id: str, job_id: str) -> JobView:
    """The job with what it produced.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with desk.database.read() as session:
        return views(desk, session, tenant_id, [repository.get(session, tenant_id, job_id)])[0]


def list_page(
    desk: Desk, tenant_id: str, query: JobQuery, *, after: Position | None, limit: int
) -> tuple[list[JobView], Position | None]:
    """One page of quantize jobs, newest first, and the position to go on from."""
    with desk.database.read() as session:
        jobs, last = repository.list_page(session, tenant_id, query, after=after, limit=limit)
        return views(desk, session, tenant_id, jobs), last


def filtered_model(desk: Desk, tenant_id: str, text: str) -> str:
    """The id of the model whose jobs are asked for, by its id or by a reference; an id that is nobody's has no jobs.

    Raises:
        ModelNotFoundError: a reference names nothing.
        ModelNotReadyError, ModelRejectedError: ``NAME@latest``, and no version is ready.
    """
    return identify(desk, MODELS, tenant_id, text, query="model_id") if SIGN in text else text


def cancel(desk: Desk, by: Principal, job_id: str) -> JobView:
    """Cancel a queued job, ask a running one to stop, leave a finished one alone.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with desk.database.write() as session:
        job = transitions.request_cancel(session, by.tenant_id, job_id)
        note(session, by, "job.cancel", job.id)
        return views(desk, session, by.tenant_id, [job])[0]


def log_after(desk: Desk, tenant_id: str, job_id: str, seq: int, limit: int) -> tuple[str, list[JobEvent]]:
    """The job's state as it is shown, and its events with numbers above ``seq``.

    The state is read first: if it is terminal, no event can follow those that are returned.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with desk.database.read() as session:
        state = shown_state(repository.get(session, tenant_id, job_id))
        return state, events.list_after(session, tenant_id, job_id, seq, limit)


def report(desk: Desk, tenant_id: str, job_id: str) -> ReportRow:
    """The report of a succeeded job.

    Raises:
        JobNotFoundError: the tenant has no such job.
        ReportNotReadyError: it has not ended.
        ReportNotFoundError: it ended without a report.
    """
    with desk.database.read() as session:
        job = repository.get(session, tenant_id, job_id)
        row = repository.report(session, tenant_id, job_id)
    if row is not None:
        return row
    if job.state in TERMINAL:
        raise ReportNotFoundError(
            f"The job {job_id} ended as {job.state} and has no report.",
            hint="GET /v1/jobs/{id} tells why, under error.",
        )
    raise ReportNotReadyError(f"The job {job_id} is {job.state}.", hint="Wait for the job: GET /v1/jobs/{id}?wait=25")


def _check(session: Session, tenant_id: str, body: JobCreate | JobValidate) -> Materials:
    """Check ids, statuses, whether data and config fit the model, and whether both can tell what is to be measured."""
    if isinstance(body, JobCreate):
        check_data_given(
            body.config,
            calibration=body.calibration_dataset_id is not None,
            evaluation=body.evaluation_dataset_id is not None,
        )
    model = _model(session, tenant_id, body.model_id)
    calibration = _dataset(session, tenant_id, body.calibration_dataset_id, "calibration_dataset_id")
    evaluation = _dataset(session, tenant_id, body.evaluation_dataset_id, "evaluation_dataset_id")
    if model is not None:
        check_float(model, body.config.preparation, pointer="/model_id")
        check_selected(body.config, model)
        inputs = fixed_inputs(model.inputs, body.config.preparation)
        model = model.model_copy(update={"inputs": inputs})
        for role, summary in (("calibration", calibration), ("evaluation", evaluation)):
            if summary is not None:
                check_dataset(
                    model,
                    summary,
                    pointer=f"/{role}_dataset_id",
                    role=f"{role} dataset",
                    labels_of_first=not body.config.evaluation.metrics,
                )
    outputs = None if model is None else model.outputs
    check_evaluation(body.config.evaluation, outputs=outputs, data=evaluation or calibration)
    check_training(body.config, inputs=None if model is None else model.inputs, outputs=outputs, data=calibration)
    measured = [
        (f"{EVALUATION_POINTER}/metrics/{k}", metric)
        for k, metric in enumerate(body.config.evaluation.metrics)
        if isinstance(metric, GraphMetric)
    ]
    _check_graphs(session, tenant_id, measured, outputs, evaluation or calibration)
    _check_graphs(session, tenant_id, graph_losses(body.config), outputs, calibration)
    return Materials(model, tuple(data for data in (calibration, evaluation) if data is not None))


def _check_graphs(
    session: Session,
    tenant_id: str,
    given: Iterable[tuple[str, GraphFed]],
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
) -> None:
    """Check the uploaded models that metrics and losses are given as; graphs in the config are left to the engine."""
    for place, metric in given:
        if metric.graph.model_id is not None:
            graph = _model(session, tenant_id, metric.graph.model_id, f"{place}/graph/model_id")
            if graph is not None:
                check_graph(
                    metric, inputs=graph.inputs, results=graph.outputs, outputs=outputs, data=data, pointer=place
                )


def _model(session: Session, tenant_id: str, model_id: str | None, pointer: str = "/model_id") -> ModelSummary | None:
    if model_id is None:
        return None
    model = models.resolved(session, tenant_id, model_id, pointer=pointer)
    quarantine.refuse(session, tenant_id, quarantine.uploaded(model), pointer=pointer)
    return model_service.ready_summary(model, pointer=pointer)


def _dataset(session: Session, tenant_id: str, dataset_id: str | None, field: str) -> DatasetSummary | None:
    if dataset_id is None:
        return None
    dataset = datasets.resolved(session, tenant_id, dataset_id, pointer=f"/{field}")
    return dataset_service.ready_summary(dataset, pointer=f"/{field}")


def _warnings(body: JobValidate) -> list[str]:
    found = list(body.translation_notes)
    if body.calibration_dataset_id is None and body.config.random_calibration is not None:
        found.append("No calibration dataset: ranges will be those of random data, which tell nothing of accuracy.")
    elif body.evaluation_dataset_id is None:
        found.append("No evaluation dataset: the models will be compared on the calibration data.")
    return found


def _accepted(view: JobView) -> Answer:
    job = view.job
    body = job_out(view).model_dump(mode="json", by_alias=True)
    return Answer(202, body, {"Location": f"/v1/jobs/{job.id}", "Retry-After": "2", "ETag": f'"{job.row_version}"'})


def _reused(view: JobView) -> Answer:
    job = view.job
    body = job_out(view, reused=True).model_dump(mode="json", by_alias=True)
    return Answer(200 if job.state in TERMINAL else 202, body, {"Location": f"/v1/jobs/{job.id}"})


def views(desk: Desk, session: Session, tenant_id: str, jobs: list[Job]) -> list[JobView]:
    """The tenant's jobs with all that is told beside their rows."""
    # What a job produced is committed with its success, so the job has to be read first.
    done = [job.id for job in jobs if job.state == "succeeded"]
    results = repository.results(session, tenant_id, done) if done else {}
    artifacts = repository.artifacts(session, tenant_id, done) if done else {}
    waiting = waiting_for(session, jobs, watched_seconds=time.monotonic() - desk.opened_at)
    named = repository.models_of(session, tenant_id, jobs)
    return [
        JobView(
            job,
            results.get(job.id),
            artifacts.get(job.id, ()),
            waiting.get(job.id),
            None if job.model_id is None else named.get(job.model_id),
        )
        for job in jobs
    ]
