"""Pools whose windows onnx's shape inference counts otherwise than onnxruntime runs them: written such that both agree.

onnxruntime (1.31) pads SAME without regard to dilations, and begins no window in the padding behind
(pool_attributes.h); inference (onnx 1.23) differs in both. Wrong lengths are worse than none: the runtime plans its
buffers by them, and fuses by them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.graph.values import DEFAULT_DOMAINS, int_attribute, plain_attributes, string_attribute
from worker.quantizer.operators.windows import Window, counts_windows_oddly, has_gaps
from worker.quantizer.preparation.passes.shapes import infer_shapes

_POOLS = ("AveragePool", "LpPool", "MaxPool")


def pools_as_counted(model: ir.Model) -> Outcome:
    """Give such pools explicit pads, by which windows are counted in one way; where lengths are known."""
    pools = [node for node in model.graph if node.op_type in _POOLS and node.domain in DEFAULT_DOMAINS]
    changed, declared = 0, {value: value.shape for value in model.graph.outputs}
    for pool in filter(counts_windows_oddly, pools):
        infer_shapes(model)
        changed += _rewrite(model.graph, pool, declared)
    return Outcome.counted(model, changed, "pools given explicit pads")


def _rewrite(graph: ir.Graph, pool: ir.Node, declared: Mapping[ir.Value, ir.Shape | None]) -> bool:
    read, made = pool.inputs[0], pool.outputs[0]
    if read is None or read.shape is None or made.shape is None or len(pool.outputs) > 1:
        return False
    if pool.op_type == "AveragePool" and has_gaps(pool):  # what it divides by hangs on where padding ends
        return False
    size, told = (shape.dims[2:] for shape in (read.shape, made.shape))
    if not all(isinstance(length, int) for length in (*size, *told)):
        return False
    found = _pads(pool, [int(length) for length in size if isinstance(length, int)])
    if found is None or list(found[1]) == list(told):
        return False
    for name in ("auto_pad", "ceil_mode"):
        pool.attributes.pop(name, None)
    pool.attributes["pads"] = ir.AttrInt64s("pads", found[0])
    behind = {made}
    made.shape = declared.get(made)
    for node in graph:
        if not behind.isdisjoint(node.inputs):
            behind.update(node.outputs)
            for value in node.outputs:
                value.shape = declared.get(value)
    return True


def _pads(pool: ir.Node, size: list[int]) -> tuple[list[int], list[int]] | None:
    """Explicit pads, before and behind, and the windows that there are then; None: no such pads say the same."""
    attributes = plain_attributes(pool)
    kernel = attributes.get("kernel_shape")
    if not isinstance(kernel, tuple):
        return None
    window = Window.of(tuple(map(int, kernel)), attributes, transposed=False)
    mode, up = string_attribute(pool, "auto_pad", "NOTSET"), int_attribute(pool, "ceil_mode", 0)
    before, behind, counts = [], [], []
    for axis, length in enumerate(size):
        stride, taps = window.strides[axis], window.kernel[axis]
        first, last = window.pads[axis], window.pads[axis + len(size)]
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            needed = (-(-length // stride) - 1) * stride + taps - length
            first = int((needed + (mode == "SAME_LOWER")) / 2)  # rounded towards 0
            last = needed - first
        elif mode == "VALID":
            first = last = 0
        reach = (taps - 1) * window.dilations[axis] + 1
        rest = length + first + last - reach
        count = (-(-rest // stride) if up else rest // stride) + 1
        if up and (count - 1) * stride >= length + first:
            count -= 1
        end = max((count - 1) * stride + reach - length - first, 0)
        before.append(first)
        behind.append(end)
        counts.append(count)
        counted = int_attribute(pool, "count_include_pad", 0) and end != last
        if min(first, rest) < 0 or max(first, end) >= taps or counted:
            return None
        if (length + first + end - reach) // stride + 1 != count:
            return None
    return [*before, *behind], counts
