"""Metrics of the user's own: an ONNX graph, checked as hostile input and run by onnxruntime, or a Python function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from service.contracts.base import below
from service.contracts.dataset import DatasetSummary
from service.contracts.errors import InvalidConfigError, QuantmillError
from service.contracts.evaluation_checks import check_graph, graph_feeds
from service.contracts.metrics import FunctionMetric, GraphMetric, GraphSource
from service.contracts.model import TensorInfo
from worker.quantizer.data.preprocess import model_dtype
from worker.quantizer.evaluation.contributions import DenseSums, quotients
from worker.quantizer.evaluation.metrics.base import Array, Meter, MetricBatch, UnfitError, finite
from worker.quantizer.graph.serialized import serialized, to_bytes
from worker.quantizer.intake.external_data import is_external
from worker.quantizer.intake.inspect import check_structure, tensor_infos
from worker.quantizer.intake.loading import load_model, parse_proto, tensors_of
from worker.quantizer.runtime.session import Session

# Takes the measured model's output over all samples, or the float model's and the measured one's; gives a number.
MetricFunction = Callable[..., float]
_HINT = "Make the graph with opset 11 or later of standard operators, and try it in onnxruntime."


class GraphProgram:
    """The compiled graph, shared by all that it measures.

    Args:
        metric: the metric.
        files: paths of uploaded models by id, for a graph that is one.
        outputs: of the measured model.
        threads: of the session.
        pointer: of the metric in the config.

    Raises:
        InvalidConfigError: the graph is damaged, not valid, or does not fit the model.
    """

    def __init__(
        self,
        metric: GraphMetric,
        files: Mapping[str, Path],
        *,
        outputs: Sequence[TensorInfo],
        threads: int,
        pointer: str,
    ) -> None:
        self._metric, self._outputs, self._pointer = metric, outputs, pointer
        with_pointer = f"{pointer}/graph"
        try:
            proto = read_graph(metric.graph, files, with_pointer, what=metric.name)
            self.inputs, self.results = tensor_infos(proto)
            check_graph(metric, inputs=self.inputs, results=self.results, outputs=outputs, data=None, pointer=pointer)
            self._session = Session(serialized(proto), threads=threads, what=f"graph of metric {metric.name!r}")
            self._dtypes = {tensor.name: model_dtype(tensor) for tensor in self.inputs}
        except InvalidConfigError:
            raise
        except QuantmillError as error:
            raise InvalidConfigError(
                f"{metric.name}: {error.detail}", pointer=with_pointer, hint=error.hint or _HINT
            ) from error
        self.feeds = graph_feeds(metric, list(self._dtypes), [tensor.name for tensor in outputs])

    def check(self, data: DatasetSummary) -> None:
        """Make sure that outputs and arrays feed all inputs.

        Raises:
            InvalidConfigError: naming those that nothing feeds.
        """
        check_graph(
            self._metric,
            inputs=self.inputs,
            results=self.results,
            outputs=self._outputs,
            data=data,
            pointer=self._pointer,
        )

    def run(self, feeds: Mapping[str, Array]) -> list[float]:
        """The numbers that the graph returns.

        Raises:
            UnfitError: an array does not fit its input, the graph fails to run, or returns no scalar.
        """
        cast = {name: _cast(array, self._dtypes[name], name) for name, array in feeds.items()}
        try:
            results = self._session.run(cast)
        except QuantmillError as error:
            raise UnfitError("graph", error.detail) from error
        for tensor, result in zip(self.results, results, strict=True):
            if np.size(result) != 1:
                raise UnfitError("graph", f"its output {tensor.name!r} has shape {list(np.shape(result))}, no scalar")
        return [float(np.asarray(result).reshape(())) for result in results]


class GraphMeter(Meter):
    """Mean of a scalar over all samples, or sum of sums over sum of counts."""

    def __init__(self, program: GraphProgram) -> None:
        self._program = program
        # sum and count by batch: a graph does not tell samples apart
        self._sums: DenseSums = DenseSums(lambda sums: quotients(sums[:, 0], sums[:, 1]))

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch; what feeds an input stands under the input's name."""
        given = {**seen.labels, **seen.reference, **seen.outputs}
        found = self._program.run({name: given[name] for name in self._program.feeds})
        pair = found if len(found) == 2 else [found[0] * seen.samples, seen.samples]
        self._sums.add(np.array([pair], np.float64), samples=seen.samples)

    def value(self) -> float | None:
        """None if the count is 0 or the graph returned NaN or Inf."""
        counted = self._sums.units and self._sums.total[1]
        found = finite(self._sums.value) if counted else None
        if found is None:
            self.undefined = "the graph returned NaN or Inf" if counted else "the graph counted nothing"
        return found


def read_graph(source: GraphSource, files: Mapping[str, Path], pointer: str, *, what: str) -> onnx.ModelProto:
    """A graph of the user's with all of its data inside.

    Args:
        source: where it is.
        files: paths of uploaded models by id.
        pointer: of the graph in the config.
        what: it is, in words.

    Raises:
        InvalidConfigError: it is not there, keeps data in other files, or is not valid.
        ModelError: it is damaged.
    """
    inline = source.inline
    if inline is not None:
        proto = parse_proto(inline)
        outside = next((tensor for tensor in tensors_of(proto) if is_external(tensor)), None)
        if outside is not None:
            raise InvalidConfigError(
                f"{what}: the graph keeps tensor {outside.name!r} in another file",
                pointer=pointer,
                hint="Save it with all data inside, or upload it as a model with its external data.",
            )
    else:
        path = files.get(str(source.model_id))
        if path is None:
            raise InvalidConfigError(
                f"{what}: uploaded model {source.model_id!r} does not exist here",
                pointer=f"{pointer}/model_id",
                hint="Models are uploaded to a service; on the command line give the graph's path.",
            )
        proto = parse_proto(to_bytes(load_model(path)))
    check_structure(proto)  # the rest is the runtime's to judge, as of any model
    return proto


def _cast(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    """The array in the input's type, where no value is lost.

    Raises:
        UnfitError: a float would become an integer, or a number does not fit.
    """
    if array.dtype == dtype:
        return array
    place = below("", "inputs", name).removeprefix("/")
    if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and dtype.kind != "f"):
        raise UnfitError(place, f"the graph's input {name!r} takes {dtype}, what feeds it is {array.dtype}")
    cast = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(cast, array):
        raise UnfitError(place, f"the graph's input {name!r} takes {dtype}, into which not all values fit")
    return cast


class FunctionMeter(Meter):
    """Keeps one output of all batches in memory and calls the function on the whole of it.

    What the function raises comes out as it is: it is the caller's own code, in the caller's own process.

    Args:
        metric: as declared.
        function: of the caller.
    """

    def __init__(self, metric: FunctionMetric, function: MetricFunction) -> None:
        self._metric, self._function = metric, function
        self._outputs: list[Array] = []
        self._reference: list[Array] = []
        self._found: float | None = None

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch.

        Raises:
            UnfitError: the output changes its shape from batch to batch, so that there is no whole of it.
        """
        self._found = None
        output = np.array(seen.outputs["output"])
        if self._outputs and output.shape[1:] != self._outputs[0].shape[1:]:
            raise UnfitError("output", "samples of different shapes do not make the one array that its function takes")
        self._outputs.append(output)
        if self._metric.against_float:
            self._reference.append(np.array(seen.reference["output"]))

    def value(self) -> float | None:
        """What the function returns.

        Raises:
            UnfitError: that is no number.
        """
        if self._outputs and self._found is None:
            parts = [self._reference, self._outputs] if self._metric.against_float else [self._outputs]
            got = self._function(*(_joined(batches) for batches in parts))
            try:
                self._found = float(got)
            except (TypeError, ValueError):
                told = f"its function returned {type(got).__name__}, not a number"
                raise UnfitError("name", told) from None
        found = None if self._found is None else finite(self._found)
        if found is None and self._found is not None:
            self.undefined = "its function returned NaN or Inf"
        return found


def _joined(batches: list[Array]) -> Array:
    """All batches along the first axis; what has no axis of samples is stacked."""
    if batches[0].ndim == 0:
        return np.stack(batches)
    joined: Array = np.concatenate(batches)
    batches[:] = [joined]
    return joined
