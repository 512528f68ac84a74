"""What a request for a job names is looked up once, and checked against what is there: nothing is stored here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from service.contracts.compatibility import check_dataset, check_float, check_selected
from service.contracts.data_checks import check_data_given
from service.contracts.dataset import DatasetSummary
from service.contracts.evaluation_checks import EVALUATION_POINTER, check_evaluation
from service.contracts.graph_checks import GraphFed, check_graph
from service.contracts.metrics import GraphMetric
from service.contracts.model import TensorInfo
from service.contracts.preparation import fixed_inputs
from service.contracts.training_checks import check_training, graph_losses
from service.datasets import repository as datasets
from service.datasets import service as dataset_service
from service.estimates.service import Estimated, estimated
from service.jobs.placement import Materials, Placement, placed
from service.jobs.ranges import taken_over
from service.jobs.references import with_ids
from service.jobs.schemas import JobCreate, JobValidate
from service.models import repository as models
from service.models import service as model_service
from service.quarantine import suspects as quarantine
from service.settings import Settings
from service.tables import Dataset, Model

_Asked = TypeVar("_Asked", JobCreate, JobValidate)


@dataclass(frozen=True)
class Named:
    """What a request names, as the database has it; what it does not name is None."""

    model: Model | None
    calibration: Dataset | None
    evaluation: Dataset | None


@dataclass(frozen=True)
class Checked(Generic[_Asked]):
    """A request that may be run.

    Attributes:
        asked: with ids where it had references, and the ranges that it takes over.
        named: what it names.
        placement: where its job goes.
        estimate: what its job will take; None where the model is not named, or its data.
    """

    asked: _Asked
    named: Named
    placement: Placement
    estimate: Estimated | None


def checked_request(session: Session, settings: Settings, tenant_id: str, body: _Asked) -> Checked[_Asked]:
    """Check a request.

    Raises:
        QuantmillError: something about it is wrong; carries its place in the request as it was sent.
    """
    with body.pointing_into_request():
        asked = with_ids(session, tenant_id, body)
    asked = asked.model_copy(update={"config": taken_over(session, tenant_id, asked)})
    with body.pointing_into_request():
        named, materials = _check(session, tenant_id, asked)
        placement = placed(session, settings, asked, materials)
    estimate = _estimate(session, settings, tenant_id, asked, materials)
    return Checked(asked, named, placement, estimate)


def _estimate(
    session: Session, settings: Settings, tenant_id: str, asked: JobCreate | JobValidate, on: Materials
) -> Estimated | None:
    has_data = on.calibration is not None or on.evaluation is not None or asked.config.random_calibration is not None
    if on.model is None or not has_data:
        return None
    deadline_seconds = settings.job_deadline_seconds
    return estimated(session, tenant_id, deadline_seconds, asked.config, on.model, on.calibration, on.evaluation)


def warnings_of(body: JobValidate) -> list[str]:
    """What is odd about a request that may be run."""
    found = list(body.translation_notes)
    if body.calibration_dataset_id is None and body.config.random_calibration is not None:
        found.append("No calibration dataset: ranges will be those of random data, which tell nothing of accuracy.")
    elif body.evaluation_dataset_id is None:
        found.append("No evaluation dataset: the models will be compared on the calibration data.")
    return found


def _check(session: Session, tenant_id: str, body: JobCreate | JobValidate) -> tuple[Named, Materials]:
    """Check ids, statuses, whether data and config fit the model, and whether both can tell what is to be measured."""
    if isinstance(body, JobCreate):
        check_data_given(
            body.config,
            calibration=body.calibration_dataset_id is not None,
            evaluation=body.evaluation_dataset_id is not None,
        )
    named = Named(
        named_model(session, tenant_id, body.model_id),
        _dataset(session, tenant_id, body.calibration_dataset_id, "calibration_dataset_id"),
        _dataset(session, tenant_id, body.evaluation_dataset_id, "evaluation_dataset_id"),
    )
    model = None if named.model is None else model_service.ready_summary(named.model, pointer="/model_id")
    calibration = _summary(named.calibration, "calibration_dataset_id")
    evaluation = _summary(named.evaluation, "evaluation_dataset_id")
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
    check_graphs(session, tenant_id, measured, outputs, evaluation or calibration)
    check_graphs(session, tenant_id, graph_losses(body.config), outputs, calibration)
    return named, Materials(model, calibration, evaluation)


def check_graphs(
    session: Session,
    tenant_id: str,
    given: Iterable[tuple[str, GraphFed]],
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
) -> None:
    """Check the uploaded models that metrics and losses are given as; graphs in the config are left to the engine."""
    for place, metric in given:
        if metric.graph.model_id is not None:
            pointer = f"{place}/graph/model_id"
            row = named_model(session, tenant_id, metric.graph.model_id, pointer)
            if row is not None:
                graph = model_service.ready_summary(row, pointer=pointer)
                check_graph(
                    metric, inputs=graph.inputs, results=graph.outputs, outputs=outputs, data=data, pointer=place
                )


def named_model(session: Session, tenant_id: str, model_id: str | None, pointer: str = "/model_id") -> Model | None:
    """The model, by its id or a reference, that a request names.

    Raises:
        ModelNotFoundError: the tenant has no such model.
        ModelQuarantinedError: it has killed its runner twice.
    """
    if model_id is None:
        return None
    model = models.resolved(session, tenant_id, model_id, pointer=pointer)
    quarantine.refuse(session, tenant_id, quarantine.uploaded(model), pointer=pointer)
    return model


def _dataset(session: Session, tenant_id: str, dataset_id: str | None, field: str) -> Dataset | None:
    return None if dataset_id is None else datasets.resolved(session, tenant_id, dataset_id, pointer=f"/{field}")


def _summary(dataset: Dataset | None, field: str) -> DatasetSummary | None:
    return None if dataset is None else dataset_service.ready_summary(dataset, pointer=f"/{field}")
