"""Pools whose windows onnx's shape inference counts otherwise than onnxruntime runs them: written such that both agree.

onnxruntime (1.31) pads SAME without regard to dilations, and begins no window in the padding behind
(pool_attributes.h); inference (onnx 1.23) differs in both. Wrong lengths are worse than none: the runtime plans its
buffers by them, and fuses by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.graph.values import DEFAULT_DOMAINS, int_attribute, plain_attributes
from worker.quantizer.ops.pools import Places
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import operator
from worker.quantizer.ops.windows import counts_windows_oddly, has_gaps
from worker.quantizer.preparation.passes.shapes import infer_shapes


def pools_as_counted(model: ir.Model) -> Outcome:
    """Give such pools explicit pads, by which windows are counted in one way; where lengths are known."""
    nodes = (node for node in model.graph if node.domain in DEFAULT_DOMAINS)
    pools = [node for node in nodes if operator(node.op_type).family is Family.POOL]
    changed, declared = 0, {value: value.shape for value in model.graph.outputs}
    inferred = False
    for pool in filter(counts_windows_oddly, pools):
        if not inferred:
            infer_shapes(model)
        inferred = not _rewrite(model.graph, pool, declared)
        changed += not inferred
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
    found = _pads(pool, tuple(int(length) for length in size if isinstance(length, int)))
    if found is None or found[1] == tuple(told):
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


def _pads(pool: ir.Node, size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Explicit pads, before and behind, and the windows that there are then; None: no such pads say the same."""
    places = Places.of(plain_attributes(pool), size)
    behind = tuple(max(more, 0) for more in places.read_behind)
    pads = (*places.before, *behind)
    if min(pads) < 0 or any(more >= taps for more, taps in zip(pads, places.window.kernel * 2, strict=True)):
        return None
    if int_attribute(pool, "count_include_pad", 0) and behind != places.after:
        return None
    padded = (sum(parts) for parts in zip(size, places.before, places.after, strict=True))
    if any(length < places.reach(axis) for axis, length in enumerate(padded)):
        return None
    same = replace(places.window, pads=pads, auto_pad="NOTSET").extent(size) == places.count
    return (pads, places.count) if same else None
