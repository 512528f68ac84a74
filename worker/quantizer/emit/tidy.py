"""What a file need not hold: where only weights were quantized, the graph around them may be half of what is left."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateHashedInitializersPass,
    DeduplicateInitializersPass,
)

from worker.quantizer.graph.skeleton import copy_of

# Constants of up to so many elements are compared as they are, larger ones by a hash first.
_SMALL_ELEMENTS = 1024
_LARGEST_ELEMENTS = 1 << 32


def tidied(model: ir.Model) -> ir.Model:
    """A copy that computes the same: equal constants are held once, equal nodes stand once, inner shapes are left out.

    Runtimes infer the shapes when they load a model.
    """
    tidy = copy_of(model)
    DeduplicateInitializersPass(size_limit=_SMALL_ELEMENTS)(tidy)
    DeduplicateHashedInitializersPass(size_limit=_LARGEST_ELEMENTS)(tidy)
    CommonSubexpressionEliminationPass()(tidy)
    for node in tidy.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
    for value in tidy.graph.initializers.values():
        if not value.is_graph_input() and not value.is_graph_output():
            value.type = value.shape = None  # the constant tells
    return tidy
