"""Do the inputs make what BatchNormalization has seen in training?

Its running mean mu and variance v are those of the training data, channel by channel. With m and s of what reaches it
now, KL(N(m, s) || N(mu, v)) = (s / v + (m - mu)^2 / v - 1 - ln(s / v)) / 2 per channel; the median over the channels
leaves out those that training has switched off, the mean of the first nodes what one of them alone does. Data of the
training's kind gives 0.02 to 0.2, a scale wrong by 255 some 2 to 10000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.model import TensorInfo
from worker.quantizer.data import Dataset
from worker.quantizer.graph.values import constant, name_of
from worker.quantizer.runtime.session import Session, inner_session
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array, run_on

# Nodes and samples that are looked at.
_NODES = 3
_SAMPLES = 8
_EPSILON = 1e-5
# Nats; data of another kind than the training's, but preprocessed alike, stays below.
CONTRADICTION = 1.5

CONTRADICTS_BATCH_NORM = declare(
    "input-contradicts-batch-norm",
    "critical",
    "what the samples make in {node!r} and the next BatchNormalization nodes is {nats:.2g} nats away from the mean and "
    "the variance of their training; {usual} is usual",
    hint="The inputs are not preprocessed as in training: check scale, mean and std.{fits}",
)


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
        picked: Dataset,
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
        batches = run_on(self._session, picked, inputs, names, limit=_SAMPLES, change=change)
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
