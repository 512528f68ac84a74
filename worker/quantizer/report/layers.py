"""The report's table of layers: types, SQNR against the float network, and why a node stayed in float."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.report import LayerFigures
from worker.quantizer.emit import Emitted
from worker.quantizer.evaluation.compare import layer_distances
from worker.quantizer.graph.values import is_constant, name_of, node_name
from worker.quantizer.plan.types import NodePlan, QuantizationPlan
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import inner_session

NOT_APPLICABLE = declare("not-applicable", "not applicable: its result is {dtypes}", by_design=True)
LEFT_IN_FLOAT = declare("left-in-float", "left in float")


def layer_figures(
    drafts: Sequence[Draft], quantized: Emitted, case: Case, services: Services
) -> tuple[LayerFigures, ...]:
    """One row per node: quantized ones by SQNR, worst first, then those left in float, then those without floats.

    What an algorithm gained is measured by running the network as it was before it on the same samples; either
    network is compared with the float one that it was made from, which equalization may have changed.

    Args:
        drafts: the calibrated network, then one more per algorithm; the last one is what was emitted.
        quantized: what the last draft was emitted as.
        case: whose data they are measured on.
        services: of the run.
    """
    last = drafts[-1]
    found = _distances(last, quantized, case, services)
    gains: dict[str, dict[str, float]] = defaultdict(dict)
    after = found
    for draft, before in zip(reversed(drafts[1:]), reversed(drafts[:-1]), strict=True):
        without = _distances(before, before.emitted(), case, services)
        for name, figure in after.items():
            old = without.get(name)
            if draft.algorithm is not None and figure is not None and old is not None and name in draft.changed:
                gains[name][draft.algorithm] = round(figure - old, 3)
        after = without
    main = {node_name(node): node for node in last.graph}
    every = {node_name(node): node for node in last.graph.all_nodes()}
    rows = [
        _row(entry, main.get(name), every[name], last.plan, found.get(name), gains.get(name, {}))
        for name, entry in last.plan.nodes.items()
        if name in every
    ]
    return tuple(sorted(rows, key=_rank))


def _distances(draft: Draft, quantized: Emitted, case: Case, services: Services) -> dict[str, float | None]:
    """SQNR in dB by node of the draft, emitted as ``quantized``, against the float model of the same draft."""
    pairs = _pairs(draft.graph, quantized, draft.plan)
    if not pairs:
        return {}
    tensors, twins = (list(dict.fromkeys(names)) for names in zip(*pairs.values(), strict=True))
    reference = inner_session(draft.prepared.model, tensors, threads=services.threads, what="float model")
    twin = inner_session(quantized.model, twins, threads=services.threads, what="quantized model")
    limit = case.config.evaluation.layer_samples
    return layer_distances(reference, twin, pairs, case.measured_on, case.inputs, limit=limit, run=services.run)


def _rank(row: LayerFigures) -> tuple[int, bool, float]:
    """Order of the table."""
    if row.reason is None:
        return 0, row.sqnr_db is None, row.sqnr_db or 0.0
    return (2 if row.reason_code == NOT_APPLICABLE.code else 1), False, 0.0


def _pairs(prepared: ir.Graph, quantized: Emitted, plan: QuantizationPlan) -> dict[str, tuple[str, str]]:
    there = {value.name for node in quantized.model.graph for value in node.outputs}
    pairs = {}
    for node in prepared:
        if not plan.nodes[node_name(node)].quantized:
            continue
        tensor = name_of(plan.carrier(node))
        twin = quantized.restored.get(tensor, tensor)
        if twin in there:
            pairs[node_name(node)] = (tensor, twin)
    return pairs


def _integer_words(node: ir.Node) -> str | None:
    """The types of a node that is known to make no floats, in words."""
    dtypes = [value.dtype for value in node.outputs if value.name]
    if not dtypes or any(dtype is None or dtype.is_floating_point() for dtype in dtypes):
        return None
    return ", ".join(dict.fromkeys(dtype.name.lower() for dtype in dtypes if dtype is not None))


def _reason(entry: NodePlan, node: ir.Node) -> Reason | None:
    """Why the node stays in float; None if it is quantized."""
    if entry.quantized:
        return None
    integers = _integer_words(node)
    return NOT_APPLICABLE(dtypes=integers) if integers is not None else entry.reason or LEFT_IN_FLOAT()


def _row(
    entry: NodePlan,
    main: ir.Node | None,
    node: ir.Node,
    plan: QuantizationPlan,
    sqnr_db: float | None,
    gain: dict[str, float],
) -> LayerFigures:
    """The row of ``node``; ``main`` is the same if it belongs to the main graph."""
    weight = activation = None
    if entry.quantized:
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is not None and is_constant(value) and name_of(value) in plan.weights:
            grid = plan.weights[name_of(value)].quantization
            weight = grid.dtype if grid is not None else None
    if entry.quantized and main is not None:
        first = node.inputs[0]
        planned = plan.activations.get(name_of(first)) if first is not None else None
        planned = planned or plan.activations.get(name_of(plan.carrier(node)))
        activation = planned.spec.dtype if planned is not None else None
    reason, inner = _reason(entry, node), entry.activation_reason
    planned_bias = plan.biases.get(entry.name) if entry.quantized else None
    bias = planned_bias.reason if planned_bias is not None else None
    return LayerFigures(
        name=entry.name,
        op=entry.op_type,
        weight_dtype=weight,
        activation_dtype=activation,
        sqnr_db=sqnr_db,
        reason=reason.words if reason else None,
        reason_code=reason.code if reason else None,
        activation_reason=inner.words if inner else None,
        activation_reason_code=inner.code if inner else None,
        bias_reason=bias.words if bias else None,
        bias_reason_code=bias.code if bias else None,
        gain=gain,
    )
