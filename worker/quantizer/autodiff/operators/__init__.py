"""ONNX operators in torch, with their true derivatives. Names follow the ONNX operator reference, opset 13 to 23."""

from __future__ import annotations

from worker.quantizer.autodiff.operators import activations, arithmetic, normalization, pooling, products
from worker.quantizer.autodiff.operators.forms import Operator

# Each takes the node's attributes and then its inputs, None for one that is left out.
COMPUTE: dict[str, Operator] = {
    **activations.COMPUTE,
    **arithmetic.COMPUTE,
    **normalization.COMPUTE,
    **pooling.COMPUTE,
    **products.COMPUTE,
}
# Positions of inputs that say how something is computed: shapes, axes, sizes. There a constant is given as a tuple of
# ints (floats: scales and region of Resize), and as a tensor what is found at run time.
STATIC: dict[str, frozenset[int]] = {}
