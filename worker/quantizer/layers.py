"""The report's table of layers: types, SQNR against the float network, and why a node stayed in float."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.model import TensorInfo
from service.contracts.report import LayerFigures
from worker.quantizer.data import Dataset
from worker.quantizer.evaluation.compare import layer_distances
from worker.quantizer.graph.values import is_constant, name_of, node_name, users
from worker.quantizer.plan.build import carrier
from worker.quantizer.plan.types import NodePlan, QuantizationPlan
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session, with_outputs

_NEVER_FLOAT = frozenset(
    {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.STRING, ir.DataType.UINT8}
)


def layer_figures(
    prepared: ir.Model,
    quantized: ir.Model,
    plan: QuantizationPlan,
    data: Dataset,
    inputs: tuple[TensorInfo, ...],
    *,
    samples: int,
    threads: int,
    run: Run,
) -> tuple[LayerFigures, ...]:
    """One row per node that computes floats: quantized ones by SQNR, worst first, then those left in float.

    Args:
        prepared: prepared float model.
        quantized: emitted model.
        plan: the plan it was emitted from.
        data: samples to measure on.
        inputs: the models' inputs.
        samples: how many.
        threads: of the sessions.
        run: told of progress.
    """
    pairs = _pairs(prepared.graph, quantized.graph, plan)
    distances: dict[str, float | None] = {}
    if pairs:
        reference = Session(
            with_outputs(prepared, _distinct(a for a, _ in pairs.values())), threads=threads, what="float model"
        )
        twin = Session(
            with_outputs(quantized, _distinct(b for _, b in pairs.values())), threads=threads, what="quantized model"
        )
        distances = layer_distances(reference, twin, pairs, data, inputs, limit=samples, run=run)
    main = {node_name(node): node for node in prepared.graph}
    rows = [
        _row(entry, main.get(name), plan, distances.get(name))
        for name, entry in plan.nodes.items()
        if entry.quantized or not _computes_no_float(main.get(name))
    ]
    done = sorted(
        (row for row in rows if row.reason is None), key=lambda row: (row.sqnr_db is None, row.sqnr_db or 0.0)
    )
    return (*done, *(row for row in rows if row.reason is not None))


def _distinct(names: object) -> list[str]:
    return list(dict.fromkeys(names))  # type: ignore[call-overload]


def _pairs(prepared: ir.Graph, quantized: ir.Graph, plan: QuantizationPlan) -> dict[str, tuple[str, str]]:
    there = {value.name for node in quantized for value in node.outputs}
    restored = {
        name_of(node.inputs[0]): name_of(reader.outputs[0])
        for node in quantized
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None
        for reader in users(node.outputs[0])
    }
    pairs = {}
    for node in prepared:
        if not plan.nodes[node_name(node)].quantized:
            continue
        tensor = name_of(carrier(node, plan))
        twin = restored.get(tensor, tensor)
        if twin in there:
            pairs[node_name(node)] = (tensor, twin)
    return pairs


def _computes_no_float(node: ir.Node | None) -> bool:
    return node is not None and all(value.dtype in _NEVER_FLOAT for value in node.outputs if value.name)


def _row(entry: NodePlan, node: ir.Node | None, plan: QuantizationPlan, sqnr_db: float | None) -> LayerFigures:
    weight = activation = None
    if entry.quantized and node is not None:
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is not None and is_constant(value) and name_of(value) in plan.weights:
            grid = plan.weights[name_of(value)].quantization
            weight = grid.dtype if grid is not None else None
        first = node.inputs[0]
        planned = plan.activations.get(name_of(first)) if first is not None else None
        planned = planned or plan.activations.get(name_of(carrier(node, plan)))
        activation = planned.spec.dtype if planned is not None else None
    return LayerFigures(
        name=entry.name,
        op=entry.op_type,
        weight_dtype=weight,
        activation_dtype=activation,
        sqnr_db=sqnr_db,
        reason=None if entry.quantized else entry.reason or "left in float",
    )
