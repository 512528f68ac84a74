"""What a request for an evaluation names is looked up, and checked against what is there: nothing is stored here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.contracts.compatibility import check_dataset
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import check_evaluation
from service.contracts.evaluation_report import check_gate, check_reference
from service.contracts.metrics import GraphMetric, Metric
from service.datasets import repository as datasets
from service.datasets import service as dataset_service
from service.estimates.service import Estimated, estimated_evaluation, finish_of_next
from service.jobs.checking import check_graphs, named_model
from service.jobs.evaluations.schemas import POINTER, EvaluationCreate
from service.jobs.queues import SizeClass, is_small, queue_of
from service.jobs.submission import Origin
from service.models import repository as models
from service.models import service as model_service
from service.settings import Settings


@dataclass(frozen=True)
class CheckedEvaluation:
    """A request that may be stored.

    Attributes:
        asked: with ids where it had references.
        spec: resolved, as JSON.
        size_class: of its job.
        model: name and version.
        origin: which job it comes from, if any.
        estimate: what it will take.
        finish_at: when it would end, from now on.
    """

    asked: EvaluationCreate
    spec: dict[str, Any]
    size_class: SizeClass
    model: tuple[str, int]
    origin: Origin
    estimate: Estimated
    finish_at: datetime | None


def checked_evaluation(
    session: Session, settings: Settings, tenant_id: str, body: EvaluationCreate, origin: Origin
) -> CheckedEvaluation:
    """Check a request.

    Raises:
        QuantmillError: something about it is wrong; carries its place in the request.
    """
    check_gate(body.evaluation, pointer=POINTER)
    check_reference(body.evaluation, has_reference=body.reference_model_id is not None, pointer=POINTER)
    spec = _with_graph_ids(session, tenant_id, body.evaluation)
    row = named_model(session, tenant_id, body.model_id)
    assert row is not None  # noqa: S101 - the request has to name one
    model = model_service.ready_summary(row, pointer="/model_id")
    data_row = datasets.resolved(session, tenant_id, body.evaluation_dataset_id, pointer="/evaluation_dataset_id")
    data = dataset_service.ready_summary(data_row, pointer="/evaluation_dataset_id")
    reference_row = named_model(session, tenant_id, body.reference_model_id, "/reference_model_id")
    summaries = [model]
    if reference_row is not None:
        summaries.append(model_service.ready_summary(reference_row, pointer="/reference_model_id"))
        _check_outputs([[output.name for output in summary.outputs] for summary in summaries])
    for summary in summaries:
        check_dataset(
            summary,
            data,
            pointer="/evaluation_dataset_id",
            role="evaluation dataset",
            labels_of_first=not spec.metrics,
        )
    check_evaluation(spec, outputs=model.outputs, data=data, pointer=POINTER)
    graphs = [
        (f"{POINTER}/metrics/{k}", metric) for k, metric in enumerate(spec.metrics) if isinstance(metric, GraphMetric)
    ]
    check_graphs(session, tenant_id, graphs, model.outputs, data)
    short = is_small(
        size_bytes=data.size_bytes + sum(summary.size_bytes for summary in summaries),
        samples=data.samples,
        most_bytes=settings.short_job_bytes,
        most_samples=settings.short_job_samples,
    )
    ids = {
        "model_id": row.id,
        "reference_model_id": None if reference_row is None else reference_row.id,
        "evaluation_dataset_id": data_row.id,
        "evaluation": spec,
    }
    asked = body.model_copy(update=ids)
    document = spec.model_dump(mode="json")
    estimate = estimated_evaluation(session, tenant_id, settings.job_deadline_seconds, spec, summaries, data)
    finish_at = finish_of_next(session, tenant_id, queue_of("evaluate"), body.priority, estimate)
    return CheckedEvaluation(
        asked, document, "short" if short else "long", (row.name, row.version), origin, estimate, finish_at
    )


def _check_outputs(names: list[list[str]]) -> None:
    own, reference = names
    if own == reference:
        return
    message = f"the outputs differ: {own} and {reference}"
    problem = FieldProblem(pointer="/reference_model_id", code="outputs-differ", message=message)
    raise InvalidConfigError(message, errors=(problem,), hint="Compare models that come from the same float model.")


def _with_graph_ids(session: Session, tenant_id: str, spec: EvaluationSpec) -> EvaluationSpec:
    """With ids where metrics name uploaded graphs by references."""
    metrics: list[Metric] = []
    for k, metric in enumerate(spec.metrics):
        if isinstance(metric, GraphMetric) and metric.graph.model_id is not None:
            pointer = f"{POINTER}/metrics/{k}/graph/model_id"
            found = models.resolved(session, tenant_id, metric.graph.model_id, pointer=pointer)
            graph = metric.graph.model_copy(update={"model_id": found.id})
            metrics.append(metric.model_copy(update={"graph": graph}))
        else:
            metrics.append(metric)
    return spec.model_copy(update={"metrics": tuple(metrics)})
