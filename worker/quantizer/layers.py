"""The report's table of layers: types, SQNR against the float network, and why a node stayed in float."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.model import TensorInfo
from service.contracts.report import LayerFigures
from worker.quantizer.data import Dataset
from worker.quantizer.emit import emit
from worker.quantizer.equalization import bias_correction
from worker.quantizer.evaluation.compare import LayerDistances, layer_distances
from worker.quantizer.graph.values import is_constant, name_of, node_name
from worker.quantizer.plan.carrying import carrier
from worker.quantizer.plan.types import NodePlan, QuantizationPlan
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session, inner_session

# Begins the reason of a node that there is nothing to quantize in.
NOT_APPLICABLE = "not applicable"


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
    """One row per node: quantized ones by SQNR, worst first, then those left in float, then those without floats.

    What bias correction gained is measured by running the network once more on the same samples, without it.

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
    distances = LayerDistances({}, {})
    if pairs:
        reference = inner_session(
            prepared, _distinct(a for a, _ in pairs.values()), threads=threads, what="float model"
        )
        twins = _distinct(b for _, b in pairs.values())
        twin = inner_session(quantized, twins, threads=threads, what="quantized model")
        others = _without_algorithms(prepared, plan, pairs, threads=threads)
        distances = layer_distances(reference, twin, pairs, data, inputs, limit=samples, run=run, others=others)
    main = {node_name(node): node for node in prepared.graph}
    every = {node_name(node): node for node in prepared.graph.all_nodes()}
    rows = [
        _row(entry, main.get(name), every[name], plan, distances) for name, entry in plan.nodes.items() if name in every
    ]
    return tuple(sorted(rows, key=_rank))


def _rank(row: LayerFigures) -> tuple[int, bool, float]:
    """Order of the table."""
    if row.reason is None:
        return 0, row.sqnr_db is None, row.sqnr_db or 0.0
    return (2 if row.reason.startswith(NOT_APPLICABLE) else 1), False, 0.0


def _without_algorithms(
    prepared: ir.Model, plan: QuantizationPlan, pairs: dict[str, tuple[str, str]], *, threads: int
) -> dict[str, tuple[Session, list[str]]]:
    """By algorithm: the quantized model as it would be without it, and the nodes that the algorithm changed."""
    plain, changed = bias_correction.without_correction(prepared.graph, plan)
    layers = [name for name in changed if name in pairs]
    if not layers:
        return {}
    model = emit(ir.from_proto(ir.to_proto(prepared)), plain)
    there = {value.name for node in model.graph for value in node.outputs}
    layers = [name for name in layers if pairs[name][1] in there]
    tensors = _distinct(pairs[name][1] for name in layers)
    session = inner_session(model, tensors, threads=threads, what="quantized model without bias correction")
    return {"bias_correction": (session, layers)}


def _distinct(names: object) -> list[str]:
    return list(dict.fromkeys(names))  # type: ignore[call-overload]


def _pairs(prepared: ir.Graph, quantized: ir.Graph, plan: QuantizationPlan) -> dict[str, tuple[str, str]]:
    there = {value.name for node in quantized for value in node.outputs}
    pairs = {}
    for node in prepared:
        if not plan.nodes[node_name(node)].quantized:
            continue
        tensor = name_of(carrier(node, plan))
        twin = plan.restored.get(tensor, tensor)
        if twin in there:
            pairs[node_name(node)] = (tensor, twin)
    return pairs


def _integer_words(node: ir.Node) -> str | None:
    """The types of a node that is known to make no floats, in words."""
    dtypes = [value.dtype for value in node.outputs if value.name]
    if not dtypes or any(dtype is None or dtype.is_floating_point() for dtype in dtypes):
        return None
    return ", ".join(dict.fromkeys(dtype.name.lower() for dtype in dtypes if dtype is not None))


def _row(
    entry: NodePlan, main: ir.Node | None, node: ir.Node, plan: QuantizationPlan, distances: LayerDistances
) -> LayerFigures:
    """The row of ``node``; ``main`` is the same if it belongs to the main graph."""
    weight = activation = None
    if entry.quantized and main is not None:
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is not None and is_constant(value) and name_of(value) in plan.weights:
            grid = plan.weights[name_of(value)].quantization
            weight = grid.dtype if grid is not None else None
        first = node.inputs[0]
        planned = plan.activations.get(name_of(first)) if first is not None else None
        planned = planned or plan.activations.get(name_of(carrier(node, plan)))
        activation = planned.spec.dtype if planned is not None else None
    reason = None if entry.quantized else entry.reason or "left in float"
    integers = _integer_words(node)
    if reason is not None and integers is not None:
        reason = f"{NOT_APPLICABLE}: its result is {integers}"
    sqnr_db = distances.quantized.get(entry.name)
    return LayerFigures(
        name=entry.name,
        op=entry.op_type,
        weight_dtype=weight,
        activation_dtype=activation,
        sqnr_db=sqnr_db,
        reason=reason,
        gain=_gains(entry.name, sqnr_db, distances),
    )


def _gains(name: str, sqnr_db: float | None, distances: LayerDistances) -> dict[str, float]:
    """By algorithm that changed the node: SQNR with it minus SQNR without it, in dB."""
    gains = {}
    for algorithm, of_model in distances.others.items():
        before = of_model.get(name)
        if before is not None and sqnr_db is not None:
            gains[algorithm] = round(sqnr_db - before, 3)
    return gains
