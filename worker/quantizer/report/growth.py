"""Why a quantized model is no smaller than the float one."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.report import ModelFigures
from worker.quantizer.graph.values import subgraph_nodes
from worker.quantizer.refine.draft import QuantizedDraft
from worker.quantizer.report.emitted_rows import stored_bytes


def growth_words(done: QuantizedDraft, before: ModelFigures, after: ModelFigures) -> str | None:
    """The causes with their bytes, the largest first; None for a model that became smaller.

    Constants are counted in the prepared model, from which the quantized one is made. What the file holds beside
    constants is its structure: nodes, names, shapes.
    """
    if after.size_bytes < before.size_bytes:
        return None
    prepared, emitted = _initializers(done.prepared.model), _initializers(done.emitted.model)
    was, now = (sum(map(stored_bytes, values.values())) for values in (prepared, emitted))
    planned = [name for name in done.plan.weights if name in prepared]
    twice = sum(stored_bytes(prepared[name]) for name in planned if name in emitted and _is_float(emitted[name]))
    inside = _bytes_inside(done.emitted.model.graph)
    saved = sum(stored_bytes(prepared[name]) for name in planned if name not in emitted)
    structure = (after.size_bytes - now) - (before.size_bytes - min(was, before.size_bytes))
    copied = max(0, was - before.size_bytes)
    causes = [
        (twice, f"weights of {twice} bytes are stored twice: as integers, and as floats for nodes that stay in float"),
        (inside, f"{inside} bytes of constants are read inside bodies of Loop, If or Scan, which need them in float"),
        (copied, f"preparation made the constants {copied} bytes larger than the whole float file"),
        (
            structure,
            f"Q/DQ nodes, names and shapes add {structure} bytes, while weights of {saved} bytes were quantized",
        ),
    ]
    told = [words for size, words in sorted(causes, key=lambda cause: -cause[0]) if size > 0]
    return f"the quantized model is not smaller: {'; '.join(told) or 'nothing in it takes fewer bytes'}"


def _initializers(model: ir.Model) -> dict[str, ir.Value]:
    graphs = (model.graph, *model.graph.subgraphs())
    return {name: value for graph in graphs for name, value in graph.initializers.items()}


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _bytes_inside(graph: ir.Graph) -> int:
    """Bytes of floats that nodes of sub-graphs read as they are."""
    read = {value for node in subgraph_nodes(graph) for value in node.inputs if value is not None}
    return sum(stored_bytes(value) for value in read if value.const_value is not None and _is_float(value))
