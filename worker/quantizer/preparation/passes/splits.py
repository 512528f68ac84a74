"""Split becomes one Slice per output, for targets that know no Split."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import RANK_UNKNOWN, Editor, Rewrite, axis_length, rank_of, rewrites
from worker.quantizer.graph.values import constant, int_attribute, node_name

PARTS_UNKNOWN = declare("parts-unknown", "the sizes of its parts are not known")


@rewrites("Split", what="Split nodes became Slice nodes")
def split_to_slice(split: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Split with known parts -> Slice; parts that nothing reads are left out."""
    source = split.inputs[0]
    rank = rank_of(source)
    if source is None:
        return None
    axis = int_attribute(split, "axis", 0)
    if axis < 0 and rank is None:
        return RANK_UNKNOWN()
    axis = axis % rank if rank is not None else axis
    sizes = _sizes(split, axis_length(source, axis))
    if sizes is None:
        return PARTS_UNKNOWN()
    wanted = [k for k, value in enumerate(split.outputs) if value.name and (value.uses() or value.is_graph_output())]
    if not wanted:
        return None
    ends = np.cumsum(sizes)
    name = node_name(split)
    axes = editor.constant(f"{name}_axes", np.array([axis], np.int64))
    slices = []
    for k in wanted:
        limits = [
            editor.constant(f"{name}_{word}_{k}", np.array([limit], np.int64))
            for word, limit in (("start", ends[k] - sizes[k]), ("end", ends[k]))
        ]
        made = editor.node("Slice", [source, *limits, axes], editor.name(f"{name}_Slice_{k}"), dtype=source.dtype)
        slices.append(made)
    results = [(split.outputs[k], made.outputs[0]) for k, made in zip(wanted, slices, strict=True)]
    return Rewrite([split], slices, results, {made.name or "": "Split" for made in slices})


def _sizes(split: ir.Node, length: int | None) -> list[int] | None:
    """Lengths of the parts along the axis; without a list all are equal, the last one may be shorter."""
    if len(split.inputs) > 1 and split.inputs[1] is not None:
        array = constant(split.inputs[1])
        return None if array is None else [int(size) for size in array.reshape(-1)]
    if length is None:
        return None
    parts = int_attribute(split, "num_outputs", len(split.outputs))
    size = -(-length // parts)
    return [max(0, min(size, length - k * size)) for k in range(parts)]
