"""Products whose inputs stay loud when scale has been moved: they compute in float, and their weights stay integers.

One scale, taken at run time from a whole tensor, leaves next to nothing of its usual channels where a few are many
times as large. What that costs in bytes is nothing; in time, the product's integer kernel. So it has to pay: on
samples held back, by a trial of the loudest, of the two loudest, of four and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.contracts.reason import declare
from worker.quantizer.plan.types import Role
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Toolkit

# A channel of usual size keeps 6 of 127 steps where another is so many times as large.
_LOUD = 20.0
# What costs more when the model runs has to be better by so much.
_WORTH_DB = 1.0
# One product out of so many at most computes in float, and a trial ends behind so many that do not pay.
_ONE_OF, _FAILURES = 4, 2

INPUT_STAYS_LOUD = declare(
    "input-stays-loud",
    "its weight is stored quantized, it computes in float: a few channels of its input are so much larger than the "
    "others that one scale leaves next to nothing of those",
    by_design=True,
)


@dataclass(frozen=True)
class MeasuredTensor:
    """A tensor that products read, as it is when scale has been moved."""

    nodes: tuple[str, ...]  # the products
    noise: float  # of what they compute, over the signal
    loudness: float  # its largest channel over the median


def loudness(low: np.ndarray, high: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The largest channel over the median of those that are not silent; extremes and ``scale`` are [channels]."""
    sizes = np.maximum(np.abs(low), np.abs(high)) / (1.0 if scale is None else scale)
    heard = sizes[sizes > 0]
    return float(heard.max() / np.median(heard)) if heard.size else 1.0


@dataclass(frozen=True)
class LeftInFloat:
    """What a trial has come to."""

    prepared: Prepared  # the network, whose facts name the products that compute in float
    nodes: tuple[str, ...]  # these products; none where it does not pay
    told: str  # in words; empty if there was nothing to try


def leave_loud(
    draft: Draft, prepared: Prepared, measured: Sequence[MeasuredTensor], touched: set[str], toolkit: Toolkit
) -> LeftInFloat:
    """The products that are better left in float, by trial.

    Args:
        draft: of the network before scale was moved.
        prepared: the network now.
        measured: what products read.
        touched: names of tensors that no longer compute what they did.
        toolkit: of the step.
    """
    most = sum(entry.role is Role.LINEAR for entry in draft.plan.nodes.values()) // _ONE_OF
    loud = sorted((one for one in measured if one.loudness >= _LOUD), key=lambda one: -one.noise)
    judge = Judge(toolkit.case, toolkit.services, toolkit.judging)
    bare = replace(toolkit, to_come=())

    def sqnr_db(tried: Prepared) -> float:
        toolkit.services.run.check()
        found = judge.score(bare.recalibrate(draft, tried, touched=touched)).sqnr_db
        return -np.inf if found is None else found

    best = LeftInFloat(prepared, (), "")
    if not loud or len(loud[0].nodes) > most:
        return best
    figure, failures, count = sqnr_db(prepared), 0, 1
    scores = [f"none {figure:.1f} dB"]
    while failures < _FAILURES:
        nodes = tuple(name for one in loud[:count] for name in one.nodes)
        if len(nodes) > most:
            break
        reasons = dict.fromkeys(nodes, INPUT_STAYS_LOUD())
        tried = replace(prepared, facts=prepared.facts.with_float_inputs(reasons))
        found = sqnr_db(tried)
        scores.append(f"{len(nodes)} {found:.1f} dB")
        if found - figure >= _WORTH_DB:
            best, figure, failures = LeftInFloat(tried, nodes, ""), found, 0
        else:
            failures += 1
        if count >= len(loud):
            break
        count = min(2 * count, len(loud))
    words = f"{len(best.nodes)} products with loud inputs compute in float; tried: {', '.join(scores)}"
    return replace(best, told=words)
