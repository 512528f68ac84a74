"""Does a metric or a loss given as a graph fit the model and the data? One rule for the API server and the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from service.contracts.algorithms.training import GraphLoss
from service.contracts.dataset import DEFAULT_LABELS, DatasetSummary
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import GraphMetric
from service.contracts.model import TensorInfo
from service.contracts.nearest import nearest_name
from service.contracts.pointers import below

_FLOATS = {"float16", "float32", "float64", "bfloat16"}
_METRIC_RESULTS, _LOSS_RESULT = "one scalar per batch, or a sum and a count", "one scalar per batch"
_NUMBERS = {*_FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}

# What is given as a graph.
GraphFed = GraphMetric | GraphLoss


class GraphFeed(NamedTuple):
    """What feeds an input of the graph.

    Attributes:
        source: an output of the measured model, the same of the float model, or an array of the dataset.
        name: of the output or the array; None: the dataset's labels.
    """

    source: Literal["output", "reference", "array"]
    name: str | None


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
            told = f"the graph's output {tensor.name!r} holds {tensor.dtype}; a loss is of floats"
            yield "/graph", "graph-outputs", told
        elif tensor.dtype not in _NUMBERS:
            yield "/graph", "graph-outputs", f"the graph's output {tensor.name!r} holds {tensor.dtype}, not numbers"
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
        yield "/inputs", "graph-input-unfed", f"nothing feeds the graph's input {name!r}; {told}"
