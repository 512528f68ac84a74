"""The models and datasets of a request for a job: a reference is looked up once, its id is kept, and it stays there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service.contracts.algorithms.training import GraphLoss, QuantizationAwareTraining
from service.contracts.config import QuantizationConfig
from service.contracts.evaluation_checks import EVALUATION_POINTER
from service.contracts.metrics import GraphMetric
from service.contracts.references import SIGN
from service.contracts.training_checks import ALGORITHMS_POINTER
from service.datasets import repository as datasets
from service.jobs.schemas import JobCreate, JobValidate
from service.models import repository as models
from service.names import repository as names
from service.names.kinds import DATASETS, MODELS

_Asked = TypeVar("_Asked", JobCreate, JobValidate)
_Fed = TypeVar("_Fed", GraphMetric, GraphLoss)
# The id for a reference at a place of the request.
_Resolve = Callable[[str, str], str]


def with_ids(session: Session, tenant_id: str, body: _Asked) -> _Asked:
    """The request with ids where it has references; whether what it names can be used is not asked here.

    Raises:
        ModelNotFoundError, DatasetNotFoundError: a reference names nothing; carries its place.
        ModelNotReadyError, ModelRejectedError, DatasetNotReadyError, DatasetRejectedError: no version is ready.
    """

    def model(text: str, pointer: str) -> str:
        return models.resolved(session, tenant_id, text, pointer=pointer).id

    def dataset(text: str, pointer: str) -> str:
        return datasets.resolved(session, tenant_id, text, pointer=pointer).id

    changes: dict[str, Any] = {}
    for field, resolve in (
        ("model_id", model),
        ("calibration_dataset_id", dataset),
        ("evaluation_dataset_id", dataset),
    ):
        text = getattr(body, field)
        if text is not None and SIGN in text:
            changes[field] = resolve(text, f"/{field}")
    if any(SIGN in text for text in body.config.graph_models):
        changes["config"] = _with_graph_ids(body.config, model)
    return body.model_copy(update=changes) if changes else body


def hold(session: Session, tenant_id: str, bodies: Sequence[JobCreate]) -> None:
    """Until the transaction ends, nobody deletes what the requests name, by ids.

    Raises:
        ModelNotFoundError, DatasetNotFoundError: something was deleted since it was checked.
    """
    graphs = [("/config", graph) for body in bodies for graph in body.config.graph_models]
    names.hold(session, MODELS, tenant_id, [*(("/model_id", body.model_id) for body in bodies), *graphs])
    calibration = [("/calibration_dataset_id", body.calibration_dataset_id) for body in bodies]
    data = [*calibration, *(("/evaluation_dataset_id", body.evaluation_dataset_id) for body in bodies)]
    names.hold(session, DATASETS, tenant_id, [(place, noun_id) for place, noun_id in data if noun_id is not None])


def _with_graph_ids(config: QuantizationConfig, resolve: _Resolve) -> QuantizationConfig:
    metrics = tuple(
        _fed(metric, f"{EVALUATION_POINTER}/metrics/{k}", resolve) if isinstance(metric, GraphMetric) else metric
        for k, metric in enumerate(config.evaluation.metrics)
    )
    algorithms = tuple(
        _trained(algorithm, f"{ALGORITHMS_POINTER}/{k}", resolve)
        if isinstance(algorithm, QuantizationAwareTraining)
        else algorithm
        for k, algorithm in enumerate(config.algorithms)
    )
    evaluation = config.evaluation.model_copy(update={"metrics": metrics})
    return config.model_copy(update={"evaluation": evaluation, "algorithms": algorithms})


def _trained(training: QuantizationAwareTraining, place: str, resolve: _Resolve) -> QuantizationAwareTraining:
    losses = tuple(
        _fed(loss, f"{place}/losses/{k}", resolve) if isinstance(loss, GraphLoss) else loss
        for k, loss in enumerate(training.losses)
    )
    return training.model_copy(update={"losses": losses})


def _fed(given: _Fed, place: str, resolve: _Resolve) -> _Fed:
    text = given.graph.model_id
    if text is None or SIGN not in text:
        return given
    graph = given.graph.model_copy(update={"model_id": resolve(text, f"{place}/graph/model_id")})
    return given.model_copy(update={"graph": graph})
