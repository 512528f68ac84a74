"""Is there the data that a quantization or a training needs? One rule for all who ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.contracts.algorithms import Autopilot, QuantizationAwareTraining
from service.contracts.algorithms.training import Augmentation, CrossEntropyLoss, GraphLoss, Shift, TrainingLoss
from service.contracts.base import nearest_name
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import DatasetSummary, RandomCalibration
from service.contracts.errors import CalibrationMissingError, FieldProblem, InvalidConfigError
from service.contracts.evaluation_checks import find_output, label_problems, output_problems
from service.contracts.model import TensorInfo

ALGORITHMS_POINTER = "/config/algorithms"
# As the hint names it; a Quark config has another word.
RANDOM_DATA_KEY = "random_calibration in the config"
_FLOATS = {"float16", "float32", "float64", "bfloat16"}
# Place within the algorithm, code, message.
_Fault = tuple[str, str, str]


def trainings(config: QuantizationConfig) -> Iterator[tuple[int, QuantizationAwareTraining]]:
    """The trainings of a config with their places among its algorithms."""
    for k, algorithm in enumerate(config.algorithms):
        if isinstance(algorithm, QuantizationAwareTraining):
            yield k, algorithm


def graph_losses(config: QuantizationConfig) -> Iterator[tuple[str, GraphLoss]]:
    """The losses that are given as graphs, by their pointers in the request."""
    for k, training in trainings(config):
        for place, loss in enumerate(training.losses):
            if isinstance(loss, GraphLoss):
                yield f"{ALGORITHMS_POINTER}/{k}/losses/{place}", loss


def check_training(
    config: QuantizationConfig,
    *,
    inputs: Sequence[TensorInfo] | None,
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
) -> None:
    """Refuse losses whose outputs or labels are not there, and augmentations of what they cannot change.

    Args:
        config: resolved recipe; one without a training is fine.
        inputs: the model's; None: not known yet.
        outputs: the model's; None: not known yet.
        data: the calibration dataset, which is trained on; None: not known yet.

    Raises:
        InvalidConfigError: one problem per fault.
    """
    problems = tuple(
        FieldProblem(pointer=f"{ALGORITHMS_POINTER}/{k}{place}", code=code, message=message)
        for k, training in trainings(config)
        for place, code, message in _faults(training, inputs, outputs, data)
    )
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=problems,
            hint="A training reads outputs of the model and arrays of the calibration dataset; a loss of kind "
            "distillation needs no labels.",
        )


def random_data_faults(config: QuantizationConfig) -> Iterator[tuple[str, str]]:
    """Place in the config and message of every loss that random inputs cannot give."""
    for k, training in trainings(config):
        for place, loss in enumerate(training.losses):
            if loss.kind != "distillation":
                told = f"{loss.name} needs real data, and there is only random data to train on"
                yield f"algorithms/{k}/losses/{place}", told


def _faults(
    training: QuantizationAwareTraining,
    inputs: Sequence[TensorInfo] | None,
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
) -> Iterator[_Fault]:
    for place, loss in enumerate(training.losses):
        for at, code, message in _loss_faults(loss, outputs, data):
            yield f"/losses/{place}/{at}", code, f"{loss.name}: {message}"
    for place, entry in enumerate(training.augmentations):
        for at, code, message in _augmentation_faults(entry, inputs):
            yield f"/augmentations/{place}/{at}", code, f"{entry.kind}: {message}"
    fewest = training.FEWEST_SAMPLES
    if data is not None and data.samples < fewest:
        told = f"a training takes {fewest} samples at least, to learn from and to choose by; there are {data.samples}"
        yield "/data_size", "samples-too-few", told


def _loss_faults(
    loss: TrainingLoss, outputs: Sequence[TensorInfo] | None, data: DatasetSummary | None
) -> Iterator[_Fault]:
    found: list[_Fault] = []
    if outputs is not None:
        found += output_problems(loss, outputs)
        if not found and not isinstance(loss, GraphLoss):
            found += _type_faults(loss, outputs)
    if data is not None:
        found += label_problems(loss, data)
    if isinstance(loss, CrossEntropyLoss) and outputs is not None and data is not None and not found:
        found += _class_faults(loss, outputs, data)
    yield from found


def _type_faults(loss: TrainingLoss, outputs: Sequence[TensorInfo]) -> Iterator[_Fault]:
    """Gradients come from floats alone."""
    for place, ref in loss.output_refs().items():
        output = _output(ref, outputs)
        if output.dtype not in _FLOATS:
            yield place, "output-type", f"output {output.name!r} is {output.dtype}; a loss needs floats"


def _class_faults(loss: CrossEntropyLoss, outputs: Sequence[TensorInfo], data: DatasetSummary) -> Iterator[_Fault]:
    """Labels that are no class numbers of the output [n, classes, ...]."""
    output = _output(loss.output_refs()["output"], outputs)
    stored = data.array(loss.labels)
    if output.shape is None or stored is None:
        return
    if len(output.shape) < 2:
        shape = list(output.shape)
        yield "output", "output-shape", f"output {output.name!r} has shape {shape}, not [samples, classes, ...]"
        return
    places, given = (len([size for size in shape if size != 1]) for shape in (output.shape[2:], stored.shape[1:]))
    if places != given:
        wanted = f"{len(output.shape) - 1} axes, one class number for each place of output {output.name!r}"
        yield "labels", "labels-shape", f"the labels have shape {list(stored.shape)}; it needs {wanted}"
        return
    classes, labels = output.shape[1], data.labels
    if not isinstance(classes, int) or labels is None or labels.maximum is None:
        return
    if loss.labels in (None, labels.array) and not (labels.minimum or 0) >= 0 <= labels.maximum < classes:
        told = f"labels are in [{labels.minimum}, {labels.maximum}]; output {output.name!r} has classes"
        yield "labels", "labels-out-of-range", f"{told} [0, {classes - 1}]"


def _augmentation_faults(entry: Augmentation, inputs: Sequence[TensorInfo] | None) -> Iterator[_Fault]:
    if inputs is None:
        return
    names = [tensor.name for tensor in inputs]
    if entry.input is not None and entry.input not in names:
        near = nearest_name(entry.input, names)
        told = f"did you mean {near!r}?" if near else f"its inputs: {', '.join(map(repr, names))}"
        yield "input", "input-unknown", f"the model has no input {entry.input!r}; {told}"
        return
    if not inputs:
        yield "input", "input-unknown", "the model has no input"
        return
    tensor = inputs[0 if entry.input is None else names.index(entry.input)]
    if tensor.dtype not in _FLOATS:
        yield "input", "input-type", f"input {tensor.name!r} is {tensor.dtype}; only floats can be augmented"
    if tensor.shape is None:
        return
    rank = len(tensor.shape)
    if entry.RANK is not None and rank != entry.RANK:
        told = f"input {tensor.name!r} has {rank} axes; pictures have {entry.RANK}: [samples, channels, height, width]"
        yield "input", "input-rank", told
    if isinstance(entry, Shift) and not -rank < entry.axis < rank:
        yield "axis", "input-rank", f"input {tensor.name!r} has {rank} axes, the first of samples: no axis {entry.axis}"


def _output(ref: int | str, outputs: Sequence[TensorInfo]) -> TensorInfo:
    name = find_output(ref, [tensor.name for tensor in outputs])
    return next(tensor for tensor in outputs if tensor.name == name)


CALIBRATION_POINTER = "/calibration_dataset_id"


def random_data_of(config: QuantizationConfig, *, pointer: str = CALIBRATION_POINTER) -> RandomCalibration:
    """What stands in for a calibration dataset that is not given.

    Ranges of mode static are taken from data, and algorithms learn from it. Elsewhere data serves to compare both
    models, and random inputs do.

    Args:
        config: resolved recipe.
        pointer: of the calibration dataset in the request.

    Raises:
        CalibrationMissingError: nothing may.
    """
    if config.random_calibration is not None:
        return config.random_calibration
    learning = [algorithm.method for algorithm in config.algorithms if algorithm.cannot_do_without_data]
    if config.mode != "static" and not learning:
        return RandomCalibration()
    methods = ", ".join(learning)
    use = "activation ranges are measured on it" if config.mode == "static" else f"{methods} learns from it"
    raise CalibrationMissingError(
        f"Calibration data is required: {use}.",
        hint=f"Give a calibration dataset. To try structure and speed without one, set {RANDOM_DATA_KEY}.",
        pointer=pointer,
    )


def check_data_given(
    config: QuantizationConfig, *, calibration: bool, evaluation: bool, pointer: str = CALIBRATION_POINTER
) -> None:
    """Refuse a quantization without the data that it needs, and judgement of accuracy on random data.

    Args:
        config: resolved recipe.
        calibration: a calibration dataset is given.
        evaluation: an evaluation dataset is given.
        pointer: of the calibration dataset in the request.

    Raises:
        CalibrationMissingError: there is no calibration data, and random data was not asked for.
        InvalidConfigError: the gate or a search asks for accuracy, and only random data is there to judge it; or a
            training for more than the float model can tell of random data.
    """
    if calibration:
        return
    random_data_of(config, pointer=pointer)
    _check_training(config)
    if evaluation:
        return
    problems = tuple(_accuracy_asked_for(config))
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=problems,
            hint="Add an evaluation dataset: random data shows nothing about accuracy.",
        )


def _check_training(config: QuantizationConfig) -> None:
    """Without a calibration dataset a network is trained on random inputs: only the float model tells what to learn."""
    problems = tuple(
        FieldProblem(pointer=f"/config/{place}", code="random-data", message=message)
        for place, message in random_data_faults(config)
    )
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=problems,
            hint="Give a calibration dataset, which is trained on, or take a loss of kind distillation alone.",
        )


def _accuracy_asked_for(config: QuantizationConfig) -> Iterator[FieldProblem]:
    told = "judges accuracy, and there is only random data to judge it on"

    def problem(at: str, message: str) -> FieldProblem:
        return FieldProblem(pointer=f"/config/{at}", code="random-data", message=message)

    for word in ("max_drop", "min_value", "max_value", "min_sqnr_db"):
        if getattr(config.evaluation.gate, word) is not None:
            yield problem(f"evaluation/gate/{word}", f"{word} {told}")
    for k, metric in enumerate(config.evaluation.metrics):
        if metric.label_refs():
            yield problem(f"evaluation/metrics/{k}", f"{metric.name} needs labels, and there is only random data")
    for k, algorithm in enumerate(config.algorithms):
        if isinstance(algorithm, Autopilot):
            yield problem(f"algorithms/{k}", f"autopilot {told}")
