"""Pools: what a window, or the whole of the spatial axes, is brought down to."""

from __future__ import annotations

from worker.quantizer.autodiff.operators.forms import Operator

COMPUTE: dict[str, Operator] = {
    "GlobalAveragePool": lambda _, x: x.mean(dim=tuple(range(2, x.dim())), keepdim=True),
}
