"""16 bits for the tensors that have outlier channels."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.plan.build import WIDER, build_plan
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.outliers import Outliers

NO_WIDER_TYPE = declare("no-wider-type", "{tensor!r} is {dtype}, which has no type of twice the bits")
WIDER_REFUSED = declare("wider-type-refused", "{tensor!r} has to be {dtype} on target {target}")
WIDER_NOT_IN_QOPERATOR = declare("wider-type-in-qoperator", "format qoperator has 8-bit types alone")
ONLY_ACTIVATIONS = declare("only-activations-wider", "weight {tensor!r} keeps its type: only activations get more bits")


def widened(
    graph: ir.Graph, plan: QuantizationPlan, facts: NodeFacts, config: QuantizationConfig, found: Sequence[Outliers]
) -> tuple[NodeFacts, list[str], dict[str, Reason]]:
    """Facts that give the tensors 16 bits; the tensors that get them, and why others do not."""
    wanted, left = [], {}
    for one in found:
        entry = plan.activations.get(one.tensor)
        if one.kind == "weight" or entry is None:
            left[one.tensor] = ONLY_ACTIVATIONS(tensor=one.tensor)
        elif config.format == "qoperator":
            left[one.tensor] = WIDER_NOT_IN_QOPERATOR()
        elif entry.spec.dtype not in WIDER:
            left[one.tensor] = NO_WIDER_TYPE(tensor=one.tensor, dtype=entry.spec.dtype)
        else:
            wanted.append(one.tensor)
    made = build_plan(graph, config, facts.with_widened(wanted))
    kept = []
    for tensor in wanted:
        dtype = made.activations[tensor].spec.dtype
        if dtype == WIDER[plan.activations[tensor].spec.dtype]:
            kept.append(tensor)
        else:
            left[tensor] = WIDER_REFUSED(tensor=tensor, dtype=dtype, target=config.target)
    return facts.with_widened(kept), kept, left
