"""Resolves and validates an evaluation request; nothing is stored here."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.contracts.compatibility import MOST_PASS_BYTES, check_batch, check_dataset
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.evaluation_checks import check_evaluation
from service.contracts.evaluation_report import check_gate, check_reference
from service.contracts.metrics import GraphMetric
from service.datasets import service as datasets
from service.estimates.service import estimated_evaluation, finish_of_next
from service.jobs.checking import check_uploaded_graph, evaluation_with_ids
from service.jobs.queues import CPU_QUEUE, is_short
from service.jobs.schemas import EVALUATION_REQUEST_POINTER as POINTER
from service.jobs.schemas import EvaluationCreate
from service.jobs.submission import Submission
from service.jobs.transitions import NewJob
from service.models import service as models
from service.names.kinds import DATASETS, MODELS
from service.names.repository import NamedInput
from service.settings import Settings

_MODEL, _REFERENCE, _DATA = "/model_id", "/reference_model_id", "/evaluation_dataset_id"


def checked_evaluation(session: Session, settings: Settings, tenant_id: str, body: EvaluationCreate) -> Submission:
    """Check a request, and compute all that storing it takes.

    Raises:
        QuantmillError: something about it is wrong; carries its place in the request.
    """
    check_gate(body.evaluation, pointer=POINTER)
    check_reference(body.evaluation, has_reference=body.reference_model_id is not None, pointer=POINTER)
    spec = evaluation_with_ids(session, tenant_id, body.evaluation, POINTER)
    row, summary = models.usable(session, tenant_id, body.model_id, pointer=_MODEL)
    summaries = [summary]
    data_row, data = datasets.usable(session, tenant_id, body.evaluation_dataset_id, pointer=_DATA)
    named: list[NamedInput] = [(MODELS, _MODEL, row.id), (DATASETS, _DATA, data_row.id)]
    reference_id = None
    if body.reference_model_id is not None:
        reference, summary = models.usable(session, tenant_id, body.reference_model_id, pointer=_REFERENCE)
        summaries.append(summary)
        reference_id = reference.id
        named.append((MODELS, _REFERENCE, reference_id))
        _check_outputs([[output.name for output in summary.outputs] for summary in summaries])
    most_bytes = settings.job_memory_bytes or MOST_PASS_BYTES
    for summary, pointer in zip(summaries, (_MODEL, _REFERENCE), strict=False):
        check_batch(summary, most_bytes=most_bytes, pointer=pointer)
    for summary in summaries:
        check_dataset(summary, data, pointer=_DATA, role="evaluation dataset", labels_of_first=not spec.metrics)
    outputs = summaries[0].outputs
    check_evaluation(spec, outputs=outputs, data=data, pointer=POINTER)
    for k, metric in enumerate(spec.metrics):
        if isinstance(metric, GraphMetric):
            check_uploaded_graph(session, tenant_id, metric, outputs, data, pointer=f"{POINTER}/metrics/{k}")
    short = is_short(
        (),
        size_bytes=data.size_bytes + sum(summary.size_bytes for summary in summaries),
        samples=data.samples,
        most_bytes=settings.short_job_bytes,
        most_samples=settings.short_job_samples,
    )
    estimate = estimated_evaluation(session, tenant_id, settings.job_deadline_seconds, spec, summaries, data)
    job = NewJob(
        tenant_id,
        "evaluate",
        priority=body.priority,
        size_class="short" if short else "long",
        model_id=row.id,
        reference_model_id=reference_id,
        evaluation_dataset_id=data_row.id,
        config={"evaluation": spec.model_dump(mode="json")},
        name=body.name,
        labels=body.labels,
        deadline_seconds=settings.job_deadline_seconds,
    )
    return Submission(
        job,
        spec,
        named=(*named, *((MODELS, "/evaluation", graph) for graph in spec.graph_models)),
        model=(row.name, row.version),
        estimate=estimate,
        finish_at=finish_of_next(session, tenant_id, CPU_QUEUE, body.priority, estimate),
    )


def _check_outputs(names: list[list[str]]) -> None:
    own, reference = names
    if own == reference:
        return
    message = f"the outputs differ: {own} and {reference}"
    problem = FieldProblem(pointer="/reference_model_id", code="outputs-differ", message=message)
    raise InvalidConfigError(
        message, errors=(problem,), hint="Compare models that were created from the same float model."
    )
