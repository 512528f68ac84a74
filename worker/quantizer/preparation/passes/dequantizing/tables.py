"""Integers restored by hand: Cast (-> Sub zero point) -> Mul by the scale, of a constant or of rows of a table.

A Mul is also where integer products are rescaled (``dynamic``).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import producer
from worker.quantizer.graph.values import int_attribute
from worker.quantizer.preparation.passes.dequantizing.dynamic import rescaled
from worker.quantizer.preparation.passes.dequantizing.soundness import well_formed
from worker.quantizer.preparation.passes.dequantizing.stored import StoredConstant, data_type, holds_integers, stored
from worker.quantizer.preparation.passes.dequantizing.undoing import Form, Found, Undoing

# Wider ones are numbers of their own, such as positions.
_MOST_BYTES = 2


def multiplied(node: ir.Node, undoing: Undoing) -> Found:
    """Mul: integers that it restores become floats, an integer product becomes one of floats."""
    for k in range(2):
        if _restored(node, node.inputs[k], node.inputs[1 - k], undoing):
            return True
    return rescaled(node, undoing)


def _restored(node: ir.Node, value: ir.Value | None, scale: ir.Value | None, undoing: Undoing) -> bool:
    sub = producer(value, "Sub")
    if sub is not None and not well_formed(sub):
        return False
    cast = producer(value if sub is None else sub.inputs[0], "Cast")
    if cast is None or not well_formed(cast):
        return False
    dtype = data_type(int_attribute(cast, "to", 0))
    if dtype is None or not dtype.is_floating_point():
        return False
    held = stored(cast.inputs[0])
    if held is None or not _is_narrow(held.array.dtype):
        return False
    scales, zeros = stored(scale), None if sub is None else stored(sub.inputs[1])
    if scales is None or (sub is not None and zeros is None):
        return False
    parameters = [one for one in (scales, zeros) if one is not None]
    if not all(_goes_along(one, held) for one in parameters):
        return False

    def compute() -> np.ndarray:
        floats = held.array.astype(np.float32)
        if zeros is not None:
            floats = floats - zeros.array.astype(np.float32)
        result: np.ndarray = (floats * scales.array.astype(np.float32)).astype(dtype.numpy())
        return result

    if held.rows is None:
        undoing.fold(node, compute())
    else:
        key = ("Mul", held.key, scales.key, None if zeros is None else zeros.key, str(dtype))
        undoing.look_up(node, held, key, compute)
    return True


def _is_narrow(dtype: np.dtype) -> bool:
    return dtype.itemsize <= _MOST_BYTES and holds_integers(dtype)


def _goes_along(parameter: StoredConstant, held: StoredConstant) -> bool:
    """True if a parameter broadcasts to the integers: to every row alike, or row by row."""
    array, shape = parameter.array, held.array.shape
    if parameter.rows is not None:
        if parameter.rows is not held.rows or array.ndim != len(shape):
            return False
    elif held.rows is not None and array.ndim >= len(shape):
        return False
    try:
        return np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        return False


FORMS: dict[str, Form] = {"Mul": multiplied}
