"""The quantized model as it is deployed."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from quantmill.torch.export import Exported
from worker.quantizer.graph.rewriting import opset_of


def model_opset(path: Path) -> int | None:
    """The opset of the standard operators of a model."""
    return opset_of(ir.load(path))


def fix_batch(source: Path, destination: Path, exported: Exported) -> None:
    """Write the model for batches of the example's size alone.

    Args:
        source: the quantized model.
        destination: where it is written.
        exported: what it was made from.
    """
    model = ir.load(source)
    sizes = {entry.name: entry.shape[0] for entry in exported.inputs if entry.batched}
    symbols = {
        str(value.shape[0].value): sizes[value.name]
        for value in model.graph.inputs
        if value.name in sizes and value.shape is not None and isinstance(value.shape[0], ir.SymbolicDim)
    }
    for value in _values(model.graph):
        if value.shape is not None:
            value.shape = ir.Shape([_fixed(dim, symbols) for dim in value.shape])
    ir.save(model, destination)


def _fixed(dim: int | ir.SymbolicDim, symbols: dict[str, int]) -> int | str | None:
    return dim if isinstance(dim, int) else symbols.get(str(dim.value))


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]
