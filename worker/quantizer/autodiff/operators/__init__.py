"""ONNX operators in torch, with their true derivatives. Names follow the ONNX operator reference, opset 13 to 23."""

from __future__ import annotations

from worker.quantizer.autodiff.operators import elementwise, layers, resizing, shapes
from worker.quantizer.autodiff.operators.forms import Operator

_FAMILIES = (elementwise, layers, resizing, shapes)
# Each takes the node's attributes and then its inputs, None for one that is left out.
COMPUTE: dict[str, Operator] = {name: compute for family in _FAMILIES for name, compute in family.COMPUTE.items()}
# Positions of inputs that say how something is computed: shapes, axes, sizes. There a constant is given as a tuple of
# ints (floats: scales and region of Resize), and as a tensor what is found at run time.
STATIC: dict[str, frozenset[int]] = {name: spots for family in _FAMILIES for name, spots in family.STATIC.items()}
# The same with limits that pass a gradient back inside (see ``clip_inward``).
COMPUTE_INWARD: dict[str, Operator] = {**COMPUTE, **elementwise.INWARD}
