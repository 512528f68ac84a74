"""Where a float network leaves the finite numbers: the first node and sample, in words of the user's model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.errors import DatasetMismatchError, UnsupportedModelError
from service.contracts.model import TensorInfo
from worker.quantizer.data import Dataset, choose_batch_size
from worker.quantizer.graph.values import is_float32, name_of, node_name
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import inner_session
from worker.quantizer.statistics.observers import Range


def check_finite(
    model: ir.Model,
    ranges: Mapping[str, Range],
    data: Dataset,
    inputs: Sequence[TensorInfo],
    *,
    limit: int | None,
    threads: int,
    run: Run,
) -> None:
    """Refuse ranges with NaN or Inf, and say where these come from; runs the network again only then.

    A range that is not finite though no tensor holds NaN or Inf is that of no values at all, and is let pass.

    ``ranges`` are by tensor name, as collected from the first ``limit`` samples of ``data``.

    Raises:
        DatasetMismatchError: some samples drive a node beyond float32; names the first node and sample.
        UnsupportedModelError: every sample does: the node computes NaN or Inf whatever it gets.
        CanceledError: the run was canceled.
    """
    bad = {name for name, found in ranges.items() if not math.isfinite(found.maximum - found.minimum)}
    if not bad:
        return
    makers = _makers(model.graph, bad)
    tensors = list(makers)
    session = inner_session(model, tensors, threads=threads, what="float model with its inner tensors")
    size = choose_batch_size(inputs, data, 1)
    first: tuple[int, str, str] | None = None  # sample, tensor, value
    clean = 0
    for batch in data.batches(inputs, size, limit=limit):
        run.check()
        results = dict(zip(tensors, session.run(batch.feeds, tensors, start=batch.start), strict=True))
        found = next((name for name in tensors if not np.isfinite(results[name]).all()), None)
        if found is None:
            clean += batch.valid
        elif first is None:
            first = (batch.start + _row(results[found], size), found, _value(results[found]))
        if first is not None and clean:
            break
    if first is None:
        return
    sample, tensor, value = first
    node = makers[tensor]
    words = f"node {node_name(node)!r} ({node.op_type}) gives {value}"
    where: dict[str, Any] = {"node": node_name(node), "op_type": node.op_type, "tensor": tensor}
    if not clean:
        raise UnsupportedModelError(
            f"{words} on every sample of the calibration data",
            hint="Exclude the node if that is meant (a mask); else check the scale of the data (scale, mean and std) "
            "and the model's weights.",
            **where,
        )
    raise DatasetMismatchError(
        f"{words} on sample {sample} of the calibration data, but not on all",
        hint="Leave the sample out, or scale the data as the model was trained (scale, mean and std).",
        sample=sample,
        **where,
    )


def _makers(graph: ir.Graph, bad: set[str]) -> dict[str, ir.Node]:
    """Float tensors up to the last one of ``bad``, in topological order, with the node that makes each."""
    makers: dict[str, ir.Node] = {}
    left = set(bad)
    for node in graph:
        for value in node.outputs:
            if value.name and is_float32(value):
                makers[name_of(value)] = node
                left.discard(name_of(value))
        if not left:
            break
    return makers


def _row(array: np.ndarray, size: int) -> int:
    """Row of the first sample with NaN or Inf, where the first axis is that of the batch."""
    if size == 1 or not array.ndim or array.shape[0] != size:
        return 0
    return int(np.argmin(np.isfinite(array).reshape(size, -1).all(axis=1)))


def _value(array: np.ndarray) -> str:
    """NaN, Inf or -Inf: the first that there is."""
    value = float(array[~np.isfinite(array)][0])
    return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
