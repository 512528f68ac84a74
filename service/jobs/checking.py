"""Resolves the references of a job request and validates it; nothing is stored here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from service.contracts.algorithms.training import GraphLoss, QuantizationAwareTraining
from service.contracts.base import SIGN
from service.contracts.compatibility import MOST_PASS_BYTES, check_batch, check_dataset, check_float, check_selected
from service.contracts.config import QuantizationConfig
from service.contracts.data_checks import ALGORITHMS_POINTER, check_data_given, check_training, graph_losses
from service.contracts.dataset import DatasetSummary
from service.contracts.devices import Device, DeviceField, device_fields, gpu_field
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import EVALUATION_POINTER, GraphFed, check_evaluation, check_graph
from service.contracts.metrics import GraphMetric
from service.contracts.model import ModelSummary, TensorInfo
from service.contracts.preparation import fixed_inputs
from service.datasets import service as datasets
from service.estimates.service import Estimated, estimated
from service.jobs.errors import NoGpuWorkerError
from service.jobs.queues import CPU_QUEUE, GPU_QUEUE, SizeClass, is_short
from service.jobs.ranges import taken_over
from service.jobs.schemas import JobCreate, JobValidate
from service.models import service as models
from service.names.kinds import MODELS
from service.names.repository import look_up
from service.queues import repository as workers
from service.settings import Settings
from service.tables import Dataset, Model

_Asked = TypeVar("_Asked", JobCreate, JobValidate)
_WithGraph = TypeVar("_WithGraph", GraphMetric, GraphLoss)
_CONFIG, _DEVICE = "/config", "/device"
_NOTHING_FOR_A_GPU = (
    "device gpu: the config has no algorithm that computes on a GPU, so the GPU will be idle unless the worker's "
    "onnxruntime can use it for the float model."
)


@dataclass(frozen=True)
class JobInputs:
    """What a request names, as the database has it and as validation found it; what it does not name is None.

    Attributes:
        model_row, calibration_row, evaluation_row: of the database.
        model: with the sizes that the config gives to open dimensions of its inputs.
        calibration, evaluation: the data.
    """

    model_row: Model | None
    calibration_row: Dataset | None
    evaluation_row: Dataset | None
    model: ModelSummary | None
    calibration: DatasetSummary | None
    evaluation: DatasetSummary | None

    @property
    def data(self) -> tuple[DatasetSummary, ...]:
        """All of the data that is named."""
        return tuple(data for data in (self.calibration, self.evaluation) if data is not None)

    @property
    def ids(self) -> dict[str, str]:
        """The fields of the request that name something, as ids."""
        rows: dict[str, Model | Dataset | None] = {
            "model_id": self.model_row,
            "calibration_dataset_id": self.calibration_row,
            "evaluation_dataset_id": self.evaluation_row,
        }
        return {name: row.id for name, row in rows.items() if row is not None}


@dataclass(frozen=True)
class JobPlacement:
    """Where a job goes; ``warnings`` say what is odd about it."""

    device: Device
    queue: str
    size_class: SizeClass
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked(Generic[_Asked]):
    """A request that may be run."""

    asked: _Asked  # with ids where it had references, and the ranges that it takes over
    inputs: JobInputs  # what it names
    placement: JobPlacement  # where its job goes
    estimate: Estimated | None  # what its job will take; None where the model is not named, or its data


def checked_request(session: Session, settings: Settings, tenant_id: str, body: _Asked) -> Checked[_Asked]:
    """Check a request: a reference is looked up once, its id is kept.

    Raises:
        QuantmillError: something about it is wrong; carries its place in the request as it was sent.
    """
    config = body.config if body.ranges_from is None else taken_over(session, tenant_id, body)
    with body.pointing_into_request():
        # what is only validated may leave its data out; random data of its config is what a job would take
        if isinstance(body, JobCreate) or config.random_calibration is not None:
            check_data_given(
                config,
                calibration=body.calibration_dataset_id is not None,
                evaluation=body.evaluation_dataset_id is not None,
            )
        if any(SIGN in text for text in config.graph_models):
            config = _with_graph_ids(session, tenant_id, config)
        inputs = _fitting(session, tenant_id, config, _inputs(session, tenant_id, body))
        if inputs.model is not None:
            most_bytes = settings.job_memory_bytes or MOST_PASS_BYTES
            check_batch(inputs.model, most_bytes=most_bytes, pointer="/model_id")
        asked = body.model_copy(update={**inputs.ids, "config": config})
        placement = placed(session, settings, asked, inputs)
    estimate, data = None, (inputs.calibration, inputs.evaluation)
    if inputs.model is not None and (inputs.data or config.random_calibration is not None):
        estimate = estimated(session, tenant_id, settings.job_deadline_seconds, config, inputs.model, *data)
    return Checked(asked, inputs, placement, estimate)


def warnings_of(body: JobValidate) -> list[str]:
    """What is odd about a request that may be run."""
    found = list(body.translation_notes)
    if body.calibration_dataset_id is None and body.config.random_calibration is not None:
        found.append("No calibration dataset: ranges come from random data, so accuracy figures are not meaningful.")
    elif body.evaluation_dataset_id is None:
        found.append("No evaluation dataset: the models are compared on the calibration data.")
    return found


def _inputs(session: Session, tenant_id: str, body: JobCreate | JobValidate) -> JobInputs:
    """What a request names, by ids or references; all of it can be used.

    Raises:
        ModelNotFoundError, ModelQuarantinedError, DatasetNotFoundError: something is not to be had.
        ModelNotReadyError, ModelRejectedError, DatasetNotReadyError, DatasetRejectedError: it cannot be used.
    """
    row, model = (None, None)
    if body.model_id is not None:
        row, model = models.usable(session, tenant_id, body.model_id, pointer="/model_id")
    (calibration_row, calibration), (evaluation_row, evaluation) = (
        (None, None) if text is None else datasets.usable(session, tenant_id, text, pointer=pointer)
        for text, pointer in (
            (body.calibration_dataset_id, "/calibration_dataset_id"),
            (body.evaluation_dataset_id, "/evaluation_dataset_id"),
        )
    )
    return JobInputs(row, calibration_row, evaluation_row, model, calibration, evaluation)


def _fitting(session: Session, tenant_id: str, config: QuantizationConfig, inputs: JobInputs) -> JobInputs:
    """Check that data and config fit the model, and that both can tell what is to be measured.

    Returns:
        The inputs, the model's with sizes where the config fixes them.
    """
    model, calibration = inputs.model, inputs.calibration
    if model is not None:
        check_float(model, config.preparation, pointer="/model_id")
        check_selected(config, model)
        model = model.model_copy(update={"inputs": fixed_inputs(model.inputs, config.preparation)})
        for role, data in (("calibration", calibration), ("evaluation", inputs.evaluation)):
            if data is not None:
                check_dataset(
                    model,
                    data,
                    pointer=f"/{role}_dataset_id",
                    role=f"{role} dataset",
                    labels_of_first=not config.evaluation.metrics,
                )
    outputs, measured_on = None if model is None else model.outputs, inputs.evaluation or calibration
    check_evaluation(config.evaluation, outputs=outputs, data=measured_on)
    check_training(config, inputs=None if model is None else model.inputs, outputs=outputs, data=calibration)
    for k, metric in enumerate(config.evaluation.metrics):
        if isinstance(metric, GraphMetric):
            place = f"{EVALUATION_POINTER}/metrics/{k}"
            check_uploaded_graph(session, tenant_id, metric, outputs, measured_on, pointer=place)
    for place, loss in graph_losses(config):
        check_uploaded_graph(session, tenant_id, loss, outputs, calibration, pointer=place)
    return replace(inputs, model=model)


def placed(session: Session, settings: Settings, body: JobCreate | JobValidate, inputs: JobInputs) -> JobPlacement:
    """Where the job that is asked for goes.

    Raises:
        InvalidConfigError: a CPU is wanted, and the config asks for a GPU.
        NoGpuWorkerError: it needs a GPU, and no worker with one is alive.
    """
    field = gpu_field(body.config)
    if body.device == "cpu" and field is not None:
        raise InvalidConfigError(
            f"The job runs on a CPU (device: cpu), but the config requires {field.value}.",
            pointer=_CONFIG + field.pointer,
            hint="Set this field to cpu or auto, or omit device.",
        )
    device: Device = "gpu" if body.device == "gpu" or field is not None else "cpu"
    queue = GPU_QUEUE if device == "gpu" else CPU_QUEUE
    if device == "gpu" and not workers.live_queues(session, {queue}):
        raise _no_worker(body, field)
    model_bytes = 0 if inputs.model is None else inputs.model.size_bytes
    short = is_short(
        (algorithm.method for algorithm in body.config.algorithms),
        size_bytes=model_bytes + sum(data.size_bytes for data in inputs.data),
        samples=sum(data.samples for data in inputs.data),
        most_bytes=settings.short_job_bytes,
        most_samples=settings.short_job_samples,
    )
    idle = body.device == "gpu" and next(device_fields(body.config), None) is None
    return JobPlacement(device, queue, "short" if short else "long", (_NOTHING_FOR_A_GPU,) if idle else ())


def _no_worker(body: JobCreate | JobValidate, field: DeviceField | None) -> NoGpuWorkerError:
    if body.device == "gpu" or field is None:
        asked, pointer, instead = "device gpu", _DEVICE, "Omit device"
    else:
        asked, pointer, instead = field.value, _CONFIG + field.pointer, "Set this field to cpu or auto"
    return NoGpuWorkerError(
        f"{asked} requires a GPU worker, but no live worker takes jobs from the queue {GPU_QUEUE}.",
        pointer=pointer,
        hint=f"{instead}, or start a worker on a machine with a GPU with `quantmill worker --queues {GPU_QUEUE}`.",
    )


def check_uploaded_graph(
    session: Session,
    tenant_id: str,
    given: GraphFed,
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
    *,
    pointer: str,
) -> None:
    """Check a metric or a loss that is an uploaded model; a graph that the config holds is left to the engine."""
    if given.graph.model_id is None:
        return
    place = f"{pointer}/graph/model_id"
    _, graph = models.usable(session, tenant_id, given.graph.model_id, pointer=place)
    check_graph(given, inputs=graph.inputs, results=graph.outputs, outputs=outputs, data=data, pointer=pointer)


def evaluation_with_ids(session: Session, tenant_id: str, spec: EvaluationSpec, pointer: str) -> EvaluationSpec:
    """The spec with ids where metrics name uploaded graphs by references; ``pointer`` is its place in the request."""
    if not any(SIGN in text for text in spec.graph_models):
        return spec
    metrics = tuple(
        _with_id(session, tenant_id, metric, f"{pointer}/metrics/{k}") if isinstance(metric, GraphMetric) else metric
        for k, metric in enumerate(spec.metrics)
    )
    return spec.model_copy(update={"metrics": metrics})


def _with_graph_ids(session: Session, tenant_id: str, config: QuantizationConfig) -> QuantizationConfig:
    """With ids where metrics and losses name uploaded graphs by references.

    Raises:
        ModelNotFoundError: a reference names nothing; carries its place.
        ModelNotReadyError, ModelRejectedError: no version is ready.
    """
    algorithms: list[Any] = []
    for k, algorithm in enumerate(config.algorithms):
        if isinstance(algorithm, QuantizationAwareTraining):
            place = f"{ALGORITHMS_POINTER}/{k}/losses"
            losses = tuple(
                _with_id(session, tenant_id, loss, f"{place}/{n}") if isinstance(loss, GraphLoss) else loss
                for n, loss in enumerate(algorithm.losses)
            )
            algorithms.append(algorithm.model_copy(update={"losses": losses}))
        else:
            algorithms.append(algorithm)
    evaluation = evaluation_with_ids(session, tenant_id, config.evaluation, EVALUATION_POINTER)
    return config.model_copy(update={"evaluation": evaluation, "algorithms": tuple(algorithms)})


def _with_id(session: Session, tenant_id: str, given: _WithGraph, place: str) -> _WithGraph:
    text = given.graph.model_id
    if text is None or SIGN not in text:
        return given
    found = look_up(session, MODELS, tenant_id, text, pointer=f"{place}/graph/model_id")
    return given.model_copy(update={"graph": given.graph.model_copy(update={"model_id": found.id})})
