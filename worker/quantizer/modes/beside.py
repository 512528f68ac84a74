"""float16 beside integers: what is not quantized computes in 16 bits, in one file with explicit Q/DQ pairs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import onnx_ir as ir

from service.contracts.reason import Reason
from worker.quantizer.emit import emit
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.graph.values import node_name
from worker.quantizer.modes.halfs import NO_DATA
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Filled
from worker.quantizer.refine.halfs import NO_FLOAT32, kept_wide, out_of_range, refused
from worker.quantizer.run.services import Services

_NAMED_AT_MOST = 8


def with_halfs(filled: Filled, case: Case, services: Services) -> Filled:
    """The same drafts, in the last of which all that can computes in float16.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    draft = filled.draft
    plan, journal = draft.plan.copy(), draft.journal.followed_by()
    with services.stages.stage("float16"):
        services.run.progress("float16")
        wide = kept_wide(draft.graph)
        others = [node for node in draft.graph if node_name(node) not in wide]
        if case.calibration.is_random:
            journal.note(NO_DATA)
        else:
            wide |= out_of_range(draft.prepared.model, others, case, services)
        halfs = {node_name(node) for node in draft.graph} - wide.keys()

        def make(chosen: set[str]) -> ir.Model:
            return emit(copy_of(draft.prepared.model), _beside(plan, chosen, case)).model

        wide |= refused(make, halfs, case, services)
        halfs -= wide.keys()
    journal.note(*_told(halfs, wide))
    drafts = [*filled.drafts[:-1], replace(draft, plan=_beside(plan, halfs, case), journal=journal)]
    return replace(filled, drafts=drafts)


def _beside(plan: QuantizationPlan, halfs: set[str], case: Case) -> QuantizationPlan:
    found = plan.copy()
    found.halfs, found.half_interface = frozenset(halfs), case.config.interface == "float16"
    return found


def _told(halfs: set[str], wide: dict[str, Reason]) -> list[str]:
    """How many nodes compute in float16, and which do not though they compute floats."""
    kept = {name: reason for name, reason in wide.items() if reason.code != NO_FLOAT32.code}
    told = [f"{len(halfs)} nodes compute in float16 where they compute on no integers; {len(kept)} in float32"]
    for words, count in Counter(reason.words for reason in kept.values()).most_common(_NAMED_AT_MOST):
        names = [name for name, reason in kept.items() if reason.words == words]
        told.append(f"float32: {', '.join(names[:3])}{' ...' if count > 3 else ''} ({words})")
    return told
