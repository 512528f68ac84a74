"""Channels that ruin a tensor for all others, by what calibration has seen of the float network."""

from __future__ import annotations

from collections.abc import Iterator

from service.contracts.report.findings import Finding
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.outliers import Outliers, find_outliers
from worker.quantizer.sanity.kind import FindingKind, declare

# Findings of each kind, the widest first, and channels that one names.
_MOST, _NAMED = 8, 8

ACTIVATION_OUTLIERS = declare(
    "outlier-channels",
    "info",
    "activation {tensor!r}: the range of channel {channels} is {ratio:.3g} times that of the median channel (of "
    "{count}), which is left {steps:.2g} of 256 steps{more}",
    hint="If accuracy has suffered, add the algorithm outlier_channels.",
)
WEIGHT_OUTLIERS = declare(
    "outlier-weight-channels",
    "info",
    "weight {tensor!r} of {node!r} has one scale, and the range of its output channel {channels} is {ratio:.3g} times "
    "that of the median channel (of {count}), which is left {steps:.2g} of 256 steps{more}",
    hint="If accuracy has suffered, set weight.granularity to per_channel, where the target has it, or add "
    "cross_layer_equalization or outlier_channels.",
)


def channel_findings(draft: Draft, bound: float | None) -> Iterator[Finding]:
    """One per tensor with outlier channels, the worst tensors of each kind.

    Args:
        draft: calibrated, before any algorithm.
        bound: see ``find_outliers``.
    """
    found = find_outliers(draft.graph, draft.plan, bound)
    for name, kind in (("activation", ACTIVATION_OUTLIERS), ("weight", WEIGHT_OUTLIERS)):
        worst = sorted((one for one in found if one.kind == name), key=lambda one: -one.ratio)
        for k, one in enumerate(worst[:_MOST]):
            yield _finding(kind, one, len(worst) - _MOST if k == _MOST - 1 else 0)


def _finding(kind: FindingKind, found: Outliers, more: int) -> Finding:
    """``more`` tensors are like it and have no finding of their own."""
    named = ", ".join(map(str, found.channels[:_NAMED]))
    named += f" and {len(found.channels) - _NAMED} more" if len(found.channels) > _NAMED else ""
    where: dict[str, str | int | float] = {
        "tensor": found.tensor,
        "node": found.node,
        "channels": ", ".join(map(str, found.channels)),
        "ratio": round(found.ratio, 3),
    }
    return kind(
        where,
        tensor=found.tensor,
        node=found.node,
        channels=named,
        ratio=found.ratio,
        count=found.spans.size,
        steps=256.0 / found.ratio,
        more=f"; {more} more tensors are like it" if more > 0 else "",
    )
