"""Calibrated ranges of one job, reused by another job with the same graph."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from service.contracts.base import below, nearest_name, read_stored
from service.contracts.config import QuantizationConfig, with_ranges
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.preparation import PreparationSpec
from service.contracts.report import Report
from service.contracts.specs import TensorRange
from service.jobs import repository
from service.jobs.errors import RangesNotUsableError
from service.jobs.schemas import JobCreate, JobValidate
from service.models import repository as models
from service.models import service as model_service
from service.names.kinds import MODELS
from service.names.repository import look_up

_PLACE = "/ranges_from"


def taken_over(session: Session, tenant_id: str, body: JobCreate | JobValidate) -> QuantizationConfig:
    """The config of a request, with the ranges of the job that it names.

    Raises:
        JobNotFoundError: the tenant has no such job.
        RangesNotUsableError: it is no quantization that succeeded, ran on another graph or prepared it otherwise, or
            calibrated nothing.
        InvalidConfigError: the config takes no ranges, or gives one to a tensor that the job has not calibrated.
    """
    if body.ranges_from is None:
        return body.config
    job = repository.get(session, tenant_id, body.ranges_from, pointer=_PLACE)
    row = repository.report(session, tenant_id, job.id)
    if job.kind != "quantize" or job.state != "succeeded" or row is None or job.model_id is None:
        raise RangesNotUsableError(
            f"Job {job.id} is a {job.kind} job in state {job.state}; it has no ranges.",
            pointer=_PLACE,
            hint="Use a quantize job that has succeeded.",
        )
    if body.model_id is not None:
        _check_same_graph(session, tenant_id, body.model_id, job.model_id)
    report = read_stored(Report, row.body)
    _check_same_preparation(body.config.preparation, report.manifest.config.preparation, job.id)
    ranges = report.tensor_ranges
    if not ranges:
        raise RangesNotUsableError(
            f"Job {job.id} did not calibrate any activations.", pointer=_PLACE, hint="Use a job with mode static."
        )
    _check_known(body.config, ranges, job.id)
    return with_ranges(body.config, ranges, pointer="/config")


def _check_same_graph(session: Session, tenant_id: str, model_id: str, other_id: str) -> None:
    model = look_up(session, MODELS, tenant_id, model_id, pointer="/model_id")
    model_service.ready_summary(model, pointer="/model_id")
    other = models.find(session, other_id)  # which may be deleted: its report is there
    assert other is not None  # noqa: S101 - the job refers to it
    sources = [models.graph_source(session, one) for one in (model, other)]
    summaries = [model_service.ready_summary(source, pointer="/model_id") for source in sources]
    # the same file uploaded twice is the same graph, too
    if summaries[0].sha256 != summaries[1].sha256:
        raise RangesNotUsableError(
            f"The source job used the model {other_id}, which has a different graph than {model_id}.",
            pointer=_PLACE,
            hint="Create the new model with new weights for the graph of that model: format safetensors "
            "with skeleton_model_id. Or set the report's tensor_ranges in the config.",
        )


def _check_same_preparation(asked: PreparationSpec, before: PreparationSpec, job_id: str) -> None:
    """Preparation makes and removes tensors: after another one the job's tensors may not be there."""
    problems = tuple(
        FieldProblem(
            pointer=below("/config/preparation", name),
            code=RangesNotUsableError.code,
            message=f"{name} is {getattr(asked, name)!r}, but was {getattr(before, name)!r} in job {job_id}",
        )
        for name in PreparationSpec.model_fields
        if getattr(asked, name) != getattr(before, name)
    )
    if not problems:
        return
    raise RangesNotUsableError(
        f"Job {job_id} prepared the graph with other settings, so its tensors may differ: {problems[0].message}.",
        errors=problems,
        hint="Use the same preparation settings, or omit ranges_from to calibrate again.",
    )


def _check_known(config: QuantizationConfig, ranges: Mapping[str, TensorRange], job_id: str) -> None:
    """What the config says itself has to be of tensors that the job has calibrated: it knows no others."""
    unknown = [name for name in config.tensor_ranges if name not in ranges]
    if not unknown:
        return
    problems = []
    for name in unknown:
        near = nearest_name(name, ranges)
        told = f"; did you mean {near!r}?" if near else ""
        message = f"job {job_id} did not calibrate a tensor named {name!r}{told}"
        problems.append(
            FieldProblem(pointer=below("/config/tensor_ranges", name), code=InvalidConfigError.code, message=message)
        )
    raise InvalidConfigError(
        f"tensor_ranges: {'; '.join(problem.message for problem in problems[:5])}",
        errors=tuple(problems),
        hint="Use tensor names from that job's report, under tensor_ranges; without ranges_from, names are "
        "checked against the model only.",
    )
