"""How large the channels of tensors are: as calibration data shows, or as the normalizations in front tell.

What a normalization hands to its factors has mean square 1 over the channels, so that channel c behind it is about as
large as its factor: x_c = g_c n_c + b_c, n_c of mean square 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.smoothing_search import SmoothableTensor
from worker.quantizer.graph.rewriting import producer
from worker.quantizer.graph.values import constant
from worker.quantizer.ops.table import Family, operator

_ROWS = 512
# Between a root and the factor that it gives may stand these.
_INVERTING = ("Div", "Reciprocal", "Cast")


@dataclass
class ObservedTensor:
    """What is known of one tensor."""

    extremes: tuple[np.ndarray, np.ndarray] | None = None  # float32 [channels] each
    rows: np.ndarray | None = None  # float32 [rows, channels], a sample


def told_by_norms(sites: Iterable[SmoothableTensor]) -> dict[str, ObservedTensor]:
    """By tensor, what the factors of the normalization in front tell of it; tensors without one are left out."""
    found = {site.tensor: _told(site) for site in sites}
    return {tensor: told for tensor, told in found.items() if told is not None}


def _told(site: SmoothableTensor) -> ObservedTensor | None:
    gain: np.ndarray | None = None
    shift = np.zeros(site.channels)
    for fold in site.folds:
        array = constant(fold.node.inputs[fold.index])
        if array is None or array.size not in (1, site.channels):
            return None
        values = np.broadcast_to(array.reshape(-1).astype(np.float64), (site.channels,))
        if _is_factor(fold.node, fold.index) and gain is None:
            gain = values
        elif operator(fold.node.op_type).family is Family.NORMALIZATION or fold.node.op_type == "Add":
            shift = shift + values
        else:
            return None
    if gain is None or not gain.any():
        return None
    rows = np.random.default_rng(0).standard_normal((_ROWS, site.channels)) * gain + shift
    seen = rows.astype(np.float32)
    return ObservedTensor((seen.min(axis=0), seen.max(axis=0)), seen)


def _is_factor(node: ir.Node, index: int) -> bool:
    """True if input ``index`` is what a normalization is multiplied with."""
    if operator(node.op_type).family is Family.NORMALIZATION:
        return index == 1
    return node.op_type == "Mul" and _is_normalized(node.inputs[1 - index])


def _is_normalized(value: ir.Value | None) -> bool:
    """True if ``value`` is divided by a root: x / sqrt(m), x * (1 / sqrt(m)), x * m ** -0.5."""
    while (cast := producer(value, "Cast")) is not None:
        value = cast.inputs[0]
    node = producer(value, "Div", "Mul")
    if node is None:
        return False
    return any(_is_root(operand) for operand in (node.inputs[1:] if node.op_type == "Div" else node.inputs))


def _is_root(value: ir.Value | None) -> bool:
    while (node := producer(value, *_INVERTING)) is not None:
        value = node.inputs[-1]
    return producer(value, "Sqrt", "Pow") is not None
