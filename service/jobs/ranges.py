"""Ranges that one job has calibrated, taken over by another of the same graph."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.contracts.config import QuantizationConfig
from service.contracts.ranges import with_ranges
from service.contracts.report import Report
from service.jobs import repository
from service.jobs.errors import RangesNotUsableError
from service.jobs.schemas import JobCreate, JobValidate
from service.models import repository as models
from service.models import service as model_service

_PLACE = "/ranges_from"


def taken_over(session: Session, tenant_id: str, body: JobCreate | JobValidate) -> QuantizationConfig:
    """The config of a request, with the ranges of the job that it names.

    Raises:
        JobNotFoundError: the tenant has no such job.
        RangesNotUsableError: it is no quantization that succeeded, ran on another graph, or calibrated nothing.
        InvalidConfigError: the config takes no ranges.
    """
    if body.ranges_from is None:
        return body.config
    job = repository.get(session, tenant_id, body.ranges_from, pointer=_PLACE)
    row = repository.report(session, job.id)
    if job.state != "succeeded" or row is None or job.model_id is None:
        raise RangesNotUsableError(
            f"The job {job.id} is a {job.kind} job that is {job.state}; it has no report.",
            pointer=_PLACE,
            hint="Name a quantization that succeeded.",
        )
    if body.model_id is not None:
        _check_same_graph(session, tenant_id, body.model_id, job.model_id)
    ranges = Report.model_validate(row.body).tensor_ranges
    if not ranges:
        raise RangesNotUsableError(
            f"The job {job.id} calibrated no activations.", pointer=_PLACE, hint="Name a job of mode static."
        )
    return with_ranges(body.config, ranges, pointer="/config")


def _check_same_graph(session: Session, tenant_id: str, model_id: str, other_id: str) -> None:
    model = models.get(session, tenant_id, model_id, pointer="/model_id")
    model_service.ready_summary(model, pointer="/model_id")
    other = models.get(session, tenant_id, other_id, pointer=_PLACE)
    firsts = [models.first_version(session, one) for one in (model, other)]
    summaries = [model_service.ready_summary(first, pointer="/model_id") for first in firsts]
    # the same file uploaded twice is the same graph, too
    if summaries[0].sha256 != summaries[1].sha256:
        raise RangesNotUsableError(
            f"The job ran on the model {other_id}, which is no version of {model_id}: their graphs may differ.",
            pointer=_PLACE,
            hint="Make the new model by new weights for the graph of the other: format safetensors with "
            "skeleton_model_id. Or give the report's tensor_ranges in the config.",
        )
