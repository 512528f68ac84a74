"""Bisection of the number of layers that a goal allows at the lower level."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from service.contracts.algorithms.precision import MixedPrecision
from service.contracts.dtypes import bits_of
from worker.quantizer.precision.goal import Measured, Referee
from worker.quantizer.precision.layers import Layer
from worker.quantizer.precision.mixed.assignment import Assigner
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Toolkit

HIGH, LOW = 0, 1
_LATENCY_RUNS = 10


@dataclass(frozen=True)
class Mix:
    """The first ``lowered`` groups of the ranking at the lower level, all others at the higher one.

    Attributes:
        lowered: how many.
        measured: how it stands to the goal.
        over_budget: which limit of the budget it breaks; None if it keeps all.
    """

    lowered: int
    measured: Measured
    over_budget: str | None


class Bisection:
    """Finds the largest number of lowered groups that meets the goal, by halving, with real evaluations.

    Every evaluation is a checkpoint: a bisection that was broken off does not repeat it.

    Args:
        assigner: makes the drafts.
        order: groups that may be lowered, in the order in which they are.
        referee: measures them.
        spec: goal, direction and budget.
        toolkit: of the step.
        finished: what becomes of a draft before it is measured.
    """

    def __init__(
        self,
        assigner: Assigner,
        order: Sequence[int],
        referee: Referee,
        spec: MixedPrecision,
        toolkit: Toolkit,
        *,
        finished: Callable[[Draft], Draft],
    ) -> None:
        self._assigner = assigner
        self._finished = finished
        self._order = order
        self._referee = referee
        self._spec = spec
        self._case, self._services = toolkit.case, toolkit.services
        self._begin = time.monotonic()
        self._tried: dict[int, Mix] = {}
        self._last: tuple[int, Draft] | None = None
        self._taken_over = 0
        self._identity = hashlib.sha256(json.dumps([spec.model_dump(mode="json"), list(order)]).encode()).hexdigest()
        self.notes: list[str] = []

    def run(self) -> Mix:
        """The best mix: goal met and in budget, else in budget and nearest to the goal, else nearest to the budget.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        low, high = 0, len(self._order)  # the goal is met at low, as far as anybody knows, and not at high
        if self._try(high).measured.met:
            low = high
        elif self._spec.optimize == "speed":
            self._try(low)
        while high - low > 1 and not self._out_of_time():
            middle = (low + high) // 2
            if self._try(middle).measured.met:
                low = middle
            else:
                high = middle
        self._try(low)
        self._fit_budget()
        return self._best()

    def draft_of(self, lowered: int) -> Draft:
        """The draft with the first ``lowered`` groups of the ranking at the lower level."""
        if self._last is None or self._last[0] != lowered:
            chosen = {layer.group: HIGH for layer in self._assigner.layers}
            chosen.update(dict.fromkeys(self._order[:lowered], LOW))
            self._last = lowered, self._assigner.draft_of(chosen)
        return self._last[1]

    def summary(self, best: Mix) -> str:
        """One sentence for the report."""
        layers = self._assigner.layers
        lowered = set(self._order[: best.lowered])
        count = sum(layer.group in lowered for layer in layers)
        goal, measured = self._spec.goal, best.measured
        source = self._case.source
        if goal.kind == "drop":
            what, limit, form = f"{goal.metric} drop", goal.max_drop, ".3g"
        else:
            what, limit, form = goal.metric, goal.limit, ".4g"
        figure = "without a value" if measured.value is None else f"{measured.value:{form}}"
        state = "met" if measured.met else measured.missed_words
        if best.over_budget is not None:
            state += f"; over budget: {best.over_budget}"
        evaluations = f"{len(self._tried)} evaluations"
        if self._taken_over:
            evaluations += f", {self._taken_over} of them by an earlier attempt"
        return (
            f"{count} of {len(layers)} layers at the lower level, the others at the higher one; {what} {figure} on the "
            f"{source} data, limit {limit:g}: goal {state}; {evaluations}"
        )

    def _fit_budget(self) -> None:
        """Lower more than the goal allows where the budget asks for it."""
        low = max((k for k, mix in self._tried.items() if mix.over_budget), default=-1)
        high = min((k for k, mix in self._tried.items() if not mix.over_budget), default=None)
        if low < 0 or high is None:
            return
        while high - low > 1 and not self._out_of_time():
            middle = (low + high) // 2
            if self._try(middle).over_budget:
                low = middle
            else:
                high = middle

    def _best(self) -> Mix:
        tried = list(self._tried.values())
        fitting = [mix for mix in tried if mix.over_budget is None]
        met = [mix for mix in fitting if mix.measured.met]
        if met:
            return max(met, key=lambda mix: mix.lowered)
        if not fitting:
            self.notes.append(f"no mix fits the budget: {tried[0].over_budget}")
            return max(tried, key=lambda mix: mix.lowered)
        return min(fitting, key=lambda mix: (mix.measured.miss, -mix.lowered))

    def _try(self, lowered: int) -> Mix:
        if lowered not in self._tried:
            self._services.run.progress("mixed precision", len(self._tried), None, "trials")
            key = f"mix {self._identity} {lowered}"
            found = self._services.checkpoint.load_as(key, json.loads)
            if found is not None:
                self._taken_over += 1
                self._tried[lowered] = Mix(lowered, Measured.of(found["measured"]), found["over_budget"])
            else:
                draft = self._finished(self.draft_of(lowered))
                # mixes are never compared by what their figures rest on
                measured = replace(self._referee.measure(draft), evidence=None)
                mix = Mix(lowered, measured, self._over_budget(draft))
                document = {"measured": measured.document, "over_budget": mix.over_budget}
                self._services.checkpoint.save(key, json.dumps(document).encode())
                self._tried[lowered] = mix
            value = self._tried[lowered].measured.value
            figures = {"lowered": float(lowered), self._referee.figure: value}
            self._services.run.metric("mixed precision", len(self._tried), figures)
        return self._tried[lowered]

    def _out_of_time(self) -> bool:
        limit = self._spec.budget.max_seconds
        if limit is None or time.monotonic() - self._begin < limit:
            return False
        note = f"the search ended after {limit:g} s, as its budget says; the best so far is returned"
        if note not in self.notes:
            self.notes.append(note)
        return True

    def _over_budget(self, draft: Draft) -> str | None:
        """Which limit of the budget the draft breaks."""
        budget = self._spec.budget
        bits = weight_bits(draft, self._assigner.layers)
        values = sum(layer.parameters for layer in self._assigner.layers)
        if budget.max_weight_bytes is not None and bits / 8 > budget.max_weight_bytes:
            return f"{bits / 8:.0f} bytes of weights, {budget.max_weight_bytes} allowed"
        if budget.max_mean_bits is not None and bits / max(values, 1) > budget.max_mean_bits:
            return f"{bits / max(values, 1):.2f} bits a weight, {budget.max_mean_bits:g} allowed"
        if budget.max_latency_ratio is None:
            return None
        ratio = self._referee.latency_ratio(draft.emitted_bytes(), runs=_LATENCY_RUNS)
        if ratio > budget.max_latency_ratio:
            return f"{ratio:.2f} of the float model's latency, {budget.max_latency_ratio:g} allowed"
        return None


def weight_bits(draft: Draft, layers: Sequence[Layer]) -> float:
    """Bits of all weights of ``layers`` as the draft stores them."""
    total = 0.0
    for layer in layers:
        planned = draft.plan.weights.get(layer.weight) if layer.weight is not None else None
        total += layer.parameters * (bits_of(planned.spec.dtype) if planned is not None else 32.0)
    return total
