"""Can the model and the data tell what a config wants to know? One rule for all who ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from service.contracts.algorithms.training import GraphLoss
from service.contracts.base import below, nearest_name
from service.contracts.compatibility import class_count
from service.contracts.dataset import DEFAULT_LABELS, DatasetSummary
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.evaluation import DEFAULT_METRICS, EvaluationSpec
from service.contracts.metrics import FunctionMetric, GraphMetric, LabelRef, Metric, TopKMetric
from service.contracts.model import TensorInfo

EVALUATION_POINTER = "/config/evaluation"
FUNCTION_HINT = (
    'Functions run in Python only: give metrics={"NAME": function} to quantmill.quantize or quantmill.torch.quantize, '
    "without a client. Elsewhere declare a metric under evaluation.metrics, such as top1, or give your rule as an ONNX "
    "graph (kind onnx)."
)
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
_TENSORS_ONLY = "other"
# Of what is measured where no metric is declared.
_RANKS_BY_DEFAULT = {"top1": 1, "top5": 5}


def check_evaluation(
    spec: EvaluationSpec,
    *,
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
    pointer: str = EVALUATION_POINTER,
) -> None:
    """Refuse metrics whose outputs or labels are not there, and a gate that the data cannot judge.

    Args:
        spec: what is to be measured.
        outputs: the model's; None: not known yet.
        data: what both models are compared on; None: not known yet.
        pointer: of ``spec`` in the request.

    Raises:
        InvalidConfigError: one problem per output or array that does not fit; or the gate judges a metric that is 100 %
            for so few classes, whatever the model decides.
    """
    problems = []
    for k, metric in enumerate(spec.metrics):
        found: list[tuple[str, str, str]] = []
        if outputs is not None:
            found += output_problems(metric, outputs)
        if data is not None:
            found += label_problems(metric, data)
        if outputs is not None and data is not None and not found:
            found += _class_problems(metric, outputs, data)
        problems += [
            FieldProblem(pointer=f"{pointer}/metrics/{k}/{place}", code=code, message=f"{metric.name}: {message}")
            for place, code, message in found
        ]
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=tuple(problems),
            hint="Metrics name outputs of the model and arrays of the dataset that both models are compared on.",
        )
    if outputs is not None:
        _check_gate_can_fail(spec, outputs, pointer)
    if data is not None and not spec.metrics:
        _check_default_gate(spec, data, pointer)


def check_no_function(spec: EvaluationSpec, *, pointer: str = EVALUATION_POINTER) -> None:
    """Refuse metrics that are Python functions, where none can be called.

    Raises:
        InvalidConfigError: one problem per such metric.
    """
    problems = tuple(
        FieldProblem(
            pointer=f"{pointer}/metrics/{k}/kind",
            code="metric-function",
            message=f"{metric.name}: a Python function cannot be sent to a service, which runs no user code",
        )
        for k, metric in enumerate(spec.metrics)
        if isinstance(metric, FunctionMetric)
    )
    if problems:
        told = "; ".join(problem.message for problem in problems[:5])
        raise InvalidConfigError(told, errors=problems, hint=FUNCTION_HINT)


def find_output(ref: int | str, names: Sequence[str]) -> str | None:
    """The output that a metric names; None if there is none."""
    if isinstance(ref, int):
        return names[ref] if ref < len(names) else None
    return ref if ref in names else None


class Reads(Protocol):
    """A metric or a loss: something that names outputs of the model and arrays of the dataset."""

    @property
    def name(self) -> str:
        """For messages."""

    def output_refs(self) -> dict[str, int | str]:
        """The model outputs that it reads, by place."""

    def label_refs(self) -> dict[str, LabelRef]:
        """The arrays of the dataset that it reads, by place."""


def output_problems(metric: Reads, outputs: Sequence[TensorInfo]) -> Iterator[tuple[str, str, str]]:
    """Place, code and message of every output that is not there, or is no tensor."""
    names = [tensor.name for tensor in outputs]
    for place, ref in metric.output_refs().items():
        name = find_output(ref, names)
        if name is None:
            listed = ", ".join(f"{k} {name!r}" for k, name in enumerate(names))
            near = nearest_name(ref, names) if isinstance(ref, str) else None
            told = f"did you mean {near!r}?" if near else f"the model's outputs are {listed}"
            yield place, "output-unknown", f"the model has no output {ref!r}; {told}"
        elif outputs[names.index(name)].dtype == _TENSORS_ONLY:
            yield place, "output-type", f"output {name!r} is not a numeric tensor"


def label_problems(metric: Reads, data: DatasetSummary) -> Iterator[tuple[str, str, str]]:
    """Place, code and message of every array that is not there, or does not hold integers where it has to."""
    for place, ref in metric.label_refs().items():
        found = data.array(ref.array)
        if found is None:
            yield place, "labels-missing", _missing(ref, data)
        elif ref.integer and found.dtype not in _INTEGERS:
            what = "the labels" if ref.array is None else f"array {ref.array!r}"
            yield place, "labels-type", f"{what} are {found.dtype}; integers are needed"


def _missing(ref: LabelRef, data: DatasetSummary) -> str:
    names = sorted({*data.arrays, *([data.labels.array] if data.labels is not None else [])})
    held = ", ".join(map(repr, names)) or "nothing else"
    if ref.array is None:
        return f"it needs labels, and the data contains no array 'labels'; name one of its arrays: {held}"
    near = nearest_name(ref.array, names)
    return f"the data has no array {ref.array!r} of {data.samples} samples; " + (
        f"did you mean {near!r}?" if near else f"it contains {held}"
    )


def _class_problems(
    metric: Metric, outputs: Sequence[TensorInfo], data: DatasetSummary
) -> Iterator[tuple[str, str, str]]:
    """Class numbers beyond the output's classes, where both are known without reading the data."""
    if not isinstance(metric, TopKMetric) or metric.class_axis is not None or metric.ignore_index is not None:
        return
    labels = data.labels
    if labels is None or labels.maximum is None or metric.labels not in (None, labels.array):
        return
    name = find_output(metric.output, [tensor.name for tensor in outputs])
    output = next(tensor for tensor in outputs if tensor.name == name)
    classes = class_count(output)
    if classes is not None and labels.maximum >= classes:
        told = f"labels are in [{labels.minimum}, {labels.maximum}]; output {name!r} has classes [0, {classes - 1}]"
        yield "labels", "labels-out-of-range", told


def _check_gate_can_fail(spec: EvaluationSpec, outputs: Sequence[TensorInfo], pointer: str) -> None:
    """A label is always among the first k of k classes or fewer."""
    gate = spec.gate
    if not gate.judges_metric:
        return
    metric = next((found for found in spec.metrics if found.name == gate.metric), None)
    ref: int | str = 0
    rank = None if metric is not None else _RANKS_BY_DEFAULT.get(gate.metric)
    if isinstance(metric, TopKMetric):
        ref, rank = metric.output, metric.rank
    name = find_output(ref, [tensor.name for tensor in outputs])
    classes = next((class_count(tensor) for tensor in outputs if tensor.name == name), None)
    if rank is None or rank == 1 or classes is None or rank < classes:
        return
    raise InvalidConfigError(
        f"the gate judges {gate.metric}, but output {name!r} has {classes} classes, and every label is among the first "
        f"{rank}",
        pointer=f"{pointer}/gate/metric",
        hint="Judge top1, or accuracy_at_k with a smaller k.",
    )


def _check_default_gate(spec: EvaluationSpec, data: DatasetSummary, pointer: str) -> None:
    """Without declared metrics, top1 and top5 need class numbers."""
    gate = spec.gate
    if not gate.judges_metric or gate.metric not in DEFAULT_METRICS or data.has_classes:
        return
    why = "has no labels"
    if data.labels is not None:
        told = f"{data.labels.dtype}{list(data.labels.shape or ())}"
        why = f"contains labels ({told}) that are not one class number per sample"
    raise InvalidConfigError(
        f"the gate judges {gate.metric}, but the evaluation data {why}",
        pointer=f"{pointer}/gate/metric",
        hint="Give an evaluation dataset with class labels, declare a metric under evaluation.metrics (for padded "
        "labels one of classes with ignore_index), or judge "
        "top1_agreement or min_sqnr_db.",
    )


_FLOATS = {"float16", "float32", "float64", "bfloat16"}
_METRIC_RESULTS, _LOSS_RESULT = "one scalar per batch, or a sum and a count", "one scalar per batch"
_NUMBERS = {*_FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}

# What is given as a graph.
GraphFed = GraphMetric | GraphLoss


class GraphFeed(NamedTuple):
    """What feeds an input of the graph."""

    # an output of the measured model, the same of the float model, or an array of the dataset
    source: Literal["output", "reference", "array"]
    name: str | None  # of the output or the array; None: the dataset's labels


def graph_feeds(metric: GraphFed, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, GraphFeed]:
    """What feeds each input of the graph: as the metric or the loss says, else by name.

    Args:
        metric: the metric or the loss; the outputs that it names are there.
        inputs: names of the graph's inputs.
        outputs: names of the measured model's outputs.
    """
    return {name: _feed(metric, name, outputs) for name in inputs}


def _feed(metric: GraphFed, name: str, outputs: Sequence[str]) -> GraphFeed:
    given = metric.inputs.get(name)
    if given is None:
        if name in outputs:
            return GraphFeed("output", name)
        return GraphFeed("array", None if name == DEFAULT_LABELS else name)
    if given.array is not None:
        return GraphFeed("array", given.array)
    if given.reference is not None:
        return GraphFeed("reference", find_output(given.reference, outputs))
    return GraphFeed("output", None if given.output is None else find_output(given.output, outputs))


def check_graph(
    metric: GraphFed,
    *,
    inputs: Sequence[TensorInfo],
    results: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
    pointer: str,
) -> None:
    """Refuse a graph whose inputs nothing feeds, or that does not return a scalar or, of a metric, a sum and a count.

    Args:
        metric: the metric or the loss.
        inputs: the graph's inputs.
        results: the graph's outputs.
        outputs: those of the measured model; None: not known yet.
        data: what it is measured on; None: not known yet.
        pointer: of the metric or the loss in the request.

    Raises:
        InvalidConfigError: one problem per fault.
    """
    faults = [*_result_faults(metric, results), *_input_faults(metric, inputs, outputs, data)]
    if faults:
        problems = tuple(
            FieldProblem(pointer=pointer + place, code=code, message=f"{metric.name}: {message}")
            for place, code, message in faults
        )
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=problems,
            hint="A graph takes outputs of the model and arrays of the dataset, by name or as its inputs say, and "
            f"returns {_LOSS_RESULT if isinstance(metric, GraphLoss) else _METRIC_RESULTS}.",
        )


def _result_faults(metric: GraphFed, results: Sequence[TensorInfo]) -> Iterator[tuple[str, str, str]]:
    trains = isinstance(metric, GraphLoss)
    if len(results) not in ((1,) if trains else (1, 2)):
        names = ", ".join(repr(tensor.name) for tensor in results) or "none"
        wanted = _LOSS_RESULT if trains else _METRIC_RESULTS
        yield "/graph", "graph-outputs", f"the graph has to return {wanted}; its outputs: {names}"
        return
    for tensor in results:
        if trains and tensor.dtype not in _FLOATS:
            told = f"the graph's output {tensor.name!r} is {tensor.dtype}; a loss needs floats"
            yield "/graph", "graph-outputs", told
        elif tensor.dtype not in _NUMBERS:
            yield "/graph", "graph-outputs", f"the graph's output {tensor.name!r} is {tensor.dtype}, not numbers"
        elif any(isinstance(axis, int) and axis != 1 for axis in tensor.shape or ()):
            shape = list(tensor.shape or ())
            yield "/graph", "graph-outputs", f"the graph's output {tensor.name!r} has shape {shape}, not a scalar's"


def _input_faults(
    metric: GraphFed,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo] | None,
    data: DatasetSummary | None,
) -> Iterator[tuple[str, str, str]]:
    names = [tensor.name for tensor in inputs]
    for name in metric.inputs:
        if name not in names:
            listed = ", ".join(map(repr, names)) or "none"
            place = below("", "inputs", name)
            yield place, "graph-input-unknown", f"the graph has no input {name!r}; its inputs: {listed}"
    if outputs is None or data is None:
        return
    made = [tensor.name for tensor in outputs]
    known = [*made, *([DEFAULT_LABELS] if data.labels is not None else []), *sorted(data.arrays)]
    for name, feed in graph_feeds(metric, names, made).items():
        if name in metric.inputs or feed.source != "array" or data.array(feed.name) is not None:
            continue
        near = nearest_name(name, known)
        told = f"did you mean {near!r}?" if near else f"there are outputs and arrays {', '.join(map(repr, known))}"
        yield "/inputs", "graph-input-unfed", f"the graph's input {name!r} has no source; {told}"
