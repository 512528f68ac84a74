"""Does the float model tell different samples apart, and do they make what its BatchNormalization has seen in training?

Its running mean mu and variance v are those of the training data, channel by channel. With m and s of what reaches it
now, KL(N(m, s) || N(mu, v)) = (s / v + (m - mu)^2 / v - 1 - ln(s / v)) / 2 per channel; the median over the channels
leaves out those that training has switched off, the mean of the first nodes what one of them alone does. Data of the
training's kind gives 0.02 to 0.2, a scale wrong by 255 some 2 to 10000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.model import TensorInfo
from service.contracts.report.layers import Finding
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.metrics.distances import class_scores
from worker.quantizer.graph.values import constant, name_of
from worker.quantizer.runtime.session import Session, inner_session
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array, run_on

# Rounding of float32 sums.
_ROUNDING = 1e-6
# Spread of a class score over the samples, as a share of the spread of all scores.
_HARDLY = 0.02
_ENOUGH = 8
# Nodes and samples that are looked at.
_NODES = 3
_SAMPLES = 8
_EPSILON = 1e-5
# Nats; data of another kind than the training's, but preprocessed alike, stays below.
CONTRADICTION = 1.5

OUTPUT_CONSTANT = declare(
    "float-output-constant",
    "critical",
    "the float model returns the same output for all {count} samples, and the samples differ",
    hint="Check scale and range of the inputs: a model that ignores its input always agrees with its "
    "quantized form. No statement about accuracy is possible.",
    undermines_verdict=True,
)
OUTPUT_NEARLY_CONSTANT = declare(
    "float-output-nearly-constant",
    "critical",
    "scores in output {output!r} of the float model hardly depend on the input: they vary by "
    "{percent:.2g} % of their spread over {count} samples",
    hint="Check scale and range of the inputs: they hardly influence the output.",
)
OUTPUT_NOT_FINITE = declare(
    "float-output-not-finite",
    "critical",
    "output {output!r} of the float model contains NaN in {share:.0f} % of {count} samples",
    hint=("Check scale and range of the inputs, and the model itself. No statement about accuracy is possible."),
    undermines_verdict=True,
)
CONTRADICTS_BATCH_NORM = declare(
    "input-contradicts-batch-norm",
    "critical",
    "the inputs of {node!r} and the next BatchNormalization nodes are {nats:.2g} nats away from the "
    "mean and variance of training; up to {usual} is usual",
    hint="The preprocessing differs from training: check scale, mean and std.{fits}",
)


def output_findings(names: Sequence[str], outputs: Sequence[Array]) -> Iterator[Finding]:
    """Judge float outputs of different samples.

    Args:
        names: of the outputs.
        outputs: each [samples, ...]; empty for one that gives no row for each sample.
    """
    there = [(name, found) for name, found in zip(names, outputs, strict=True) if len(found)]
    floats = [(name, found) for name, found in there if found.dtype.kind == "f"]
    for name, found in floats:
        lost = np.isnan(found).reshape(len(found), -1).any(axis=1)
        if lost.any():
            yield OUTPUT_NOT_FINITE({"output": name}, output=name, share=100.0 * lost.mean(), count=len(found))
    judged = floats or there
    if not judged or len(judged[0][1]) < 2:
        return
    if len(there) == len(names) and all(_is_constant(found) for _, found in judged):
        yield OUTPUT_CONSTANT(count=len(judged[0][1]))
        return
    name, first = judged[0]
    scores = class_scores(first)
    if scores is None or scores.ndim != 2 or len(scores) < _ENOUGH or not np.isfinite(scores).all():
        return
    wide = scores.astype(np.float64)
    share = float(np.sqrt(wide.var(axis=0).mean()) / (wide.std() or 1.0))
    if share < _HARDLY:
        yield OUTPUT_NEARLY_CONSTANT({"output": name}, output=name, percent=100.0 * share, count=len(scores))


def _is_constant(values: Array) -> bool:
    if values.dtype.kind != "f":
        return bool((values == values[:1]).all())
    if not np.isfinite(values).all():
        return False
    wide = values.astype(np.float64)
    return bool(np.abs(wide - wide[:1]).max(initial=0.0) <= _ROUNDING * np.abs(wide).max(initial=0.0))


@dataclass(frozen=True)
class _Node:
    """A BatchNormalization: name, tensor that it takes, running mean and variance float64 [channels]."""

    name: str
    tensor: str
    mean: Array
    variance: Array


class BatchNorms:
    """The first BatchNormalization nodes of a model, to be compared with samples.

    Args:
        model: the float model.
        threads: CPU threads.
    """

    def __init__(self, model: ir.Model, *, threads: int) -> None:
        self._nodes = list(_first_nodes(model.graph))
        self._session: Session | None = None
        if self._nodes:
            tensors = list(dict.fromkeys(node.tensor for node in self._nodes))
            self._session = inner_session(model, tensors, threads=threads, what="float model")

    @property
    def first(self) -> str | None:
        """Name of the first node; None without any."""
        return self._nodes[0].name if self._nodes else None

    def nats(
        self,
        picked: OpenDataset,
        inputs: Sequence[TensorInfo],
        change: Callable[[dict[str, Array]], dict[str, Array]] | None = None,
    ) -> float | None:
        """How far the samples are from the training; None without nodes.

        Args:
            picked: the samples.
            inputs: the model's.
            change: what to do to the feeds first.

        Raises:
            EngineError: the runtime failed on the data.
        """
        if self._session is None:
            return None
        names = self._session.output_names
        batches = run_on(self._session, picked, inputs, names, samples=range(_SAMPLES), change=change)
        found = {name: [batch[k] for batch in batches] for k, name in enumerate(names)}
        distances = [_nats(node, found[node.tensor]) for node in self._nodes]
        return float(np.mean(distances))


def _first_nodes(graph: ir.Graph) -> list[_Node]:
    found: list[_Node] = []
    for node in graph:
        if node.op_type != "BatchNormalization" or len(found) == _NODES or node.inputs[0] is None:
            continue
        mean, variance = constant(node.inputs[3]), constant(node.inputs[4])
        if mean is not None and variance is not None:
            wide = (mean.astype(np.float64), variance.astype(np.float64))
            found.append(_Node(node.name or str(node.outputs[0].name), name_of(node.inputs[0]), *wide))
    return found


def _nats(node: _Node, batches: Sequence[Array]) -> float:
    """Median over the channels."""
    count, total, squares = 0, 0.0, 0.0
    for batch in batches:
        rows = np.moveaxis(batch.astype(np.float32, copy=False), 1, 0).reshape(batch.shape[1], -1)
        count += rows.shape[1]
        total = total + rows.sum(axis=1, dtype=np.float64)
        squares = squares + np.einsum("ck,ck->c", rows, rows, dtype=np.float64)
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0) + _EPSILON
    usual = node.variance + _EPSILON
    ratio = variance / usual
    return float(np.median(0.5 * (ratio + (mean - node.mean) ** 2 / usual - 1.0 - np.log(ratio))))
