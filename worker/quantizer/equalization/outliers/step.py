"""The treatment of outlier channels as a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from service.contracts.algorithms import OutlierChannels
from service.contracts.reason import Reason, declare
from worker.quantizer.equalization.outliers.treatments import TREATMENTS, Treated
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import SQNR_WORSE, Judge
from worker.quantizer.refine.outliers import Outliers, find_outliers
from worker.quantizer.refine.step import Change, Step, Toolkit

# What a treatment that costs more when the model runs has to be better by.
_WORTH_DB = 1.0
_NAMED_AT_MOST = 5
_EQUALIZATION = "cross_layer_equalization"

NO_OUTLIERS = declare(
    "no-outlier-channels", "no tensor has a channel as much wider than the others as outlier_ratio asks", by_design=True
)
LEFT_TO_EQUALIZATION = declare(
    "outliers-left-to-equalization",
    "only weights with one scale have outlier channels, and cross_layer_equalization, which follows, balances them all",
    by_design=True,
)
NO_TREATMENT = declare("outliers-left-alone", "no outlier channel could be treated")
NONE_HELPED = declare("no-treatment-helped", "no treatment brings the outputs nearer to the float model")


class OutlierChannelsStep(Step[OutlierChannels]):
    """Treats the channels that alone set the range of a tensor; see ``TREATMENTS``.

    What there is to treat stands in the plan: calibration looks at the channels of every tensor anyway.
    """

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The draft with its outliers treated, calibrated anew."""
        found = find_outliers(draft.graph, draft.plan, toolkit.case.config.outlier_ratio)
        if not found:
            return Change.nothing(NO_OUTLIERS())
        if self.spec.treatment == "auto" and any(step.method == _EQUALIZATION for step in toolkit.to_come):
            found = [one for one in found if one.kind == "activation"]
            if not found:
                return Change.nothing(LEFT_TO_EQUALIZATION())
        if self.spec.treatment != "auto":
            return _change(found, TREATMENTS[self.spec.treatment](self.spec, draft, found, toolkit))
        return _Search(self.spec, draft, found, toolkit).run()


class _Search:
    """Tries all treatments, and what the best of them leaves with the others.

    Args:
        spec: of the algorithm.
        draft: calibrated.
        found: its outliers.
        toolkit: of the step.
    """

    def __init__(self, spec: OutlierChannels, draft: Draft, found: Sequence[Outliers], toolkit: Toolkit) -> None:
        self._spec, self._draft, self._found, self._toolkit = spec, draft, found, toolkit
        case = toolkit.case
        self._judge = Judge(case, toolkit.services, toolkit.held_back or case.calibration_samples)
        self._tried: list[str] = []
        self._left: dict[str, Reason] = {}

    def run(self) -> Change:
        """The best draft, if it is better than the one before."""
        best: Treated | None = None
        chosen = ""
        for name in TREATMENTS:
            treated = self._treated(name, self._draft, self._found)
            if treated is not None and self._is_better(treated, best):
                best, chosen = treated, name
        if best is None or best.draft is None:
            reason = NONE_HELPED if self._tried else NO_TREATMENT
            why = list(dict.fromkeys(map(str, self._left.values())))
            more = [f"{len(why) - _NAMED_AT_MOST} more reasons"] if len(why) > _NAMED_AT_MOST else []
            told = "; ".join([*self._tried, *why[:_NAMED_AT_MOST], *more])
            return Change.nothing(reason.saying(f"{reason()}: {told}"))
        for name in TREATMENTS:
            rest = [one for one in self._found if one.tensor not in best.told]
            treated = self._treated(name, best.draft, rest) if rest and name != chosen else None
            if treated is not None and self._is_better(treated, best):
                nodes = tuple(dict.fromkeys([*best.nodes, *treated.nodes]))
                best = replace(treated, told={**best.told, **treated.told}, nodes=nodes)
        return _change(self._found, replace(best, left=self._left), tried=self._tried)

    def _treated(self, name: str, draft: Draft, found: Sequence[Outliers]) -> Treated | None:
        treated = TREATMENTS[name](self._spec, draft, found, self._toolkit)
        self._left |= {tensor: reason for tensor, reason in treated.left.items() if tensor not in self._left}
        if treated.draft is None:
            return None
        sqnr_db = self._judge.score(treated.draft).sqnr_db
        figure = "outputs not finite" if sqnr_db is None else f"{sqnr_db:.1f} dB"
        self._tried.append(f"{name} of {len(treated.told)}: {figure}")
        return treated

    def _is_better(self, treated: Treated, best: Treated | None) -> bool:
        """Better than the draft as it was; and if there is a cheaper treatment, enough to pay for it."""
        before = self._draft if best is None or best.draft is None else best.draft
        if treated.draft is None:
            return False
        worse = self._judge.worse(before, treated.draft)
        if worse is None or worse.code != SQNR_WORSE.code:
            return worse is not None
        old, new = self._judge.score(before).sqnr_db, self._judge.score(treated.draft).sqnr_db
        return old is not None and new is not None and (best is None or new - old >= _WORTH_DB)


def _change(found: Sequence[Outliers], treated: Treated, *, tried: Sequence[str] = ()) -> Change:
    """What the report says of a treatment."""
    told = summary(found, treated) + (f"; tried: {', '.join(tried)}" if tried else "")
    if treated.draft is None:
        return Change.nothing(NO_TREATMENT.saying(f"{NO_TREATMENT()}: {told}"))
    return Change(treated.draft, treated.nodes, told)


def summary(found: Sequence[Outliers], treated: Treated) -> str:
    """One sentence for the report."""
    parts = [f"{len(treated.told)} of {len(found)} tensors with outlier channels treated"]
    named = list(treated.told.items())
    parts += [f"{tensor!r} {done}" for tensor, done in named[:_NAMED_AT_MOST]]
    if len(named) > _NAMED_AT_MOST:
        parts.append(f"{len(named) - _NAMED_AT_MOST} more")
    left = Counter(str(reason) for tensor, reason in treated.left.items() if tensor not in treated.told)
    parts += [f"left alone: {why}" for why, _ in left.most_common(_NAMED_AT_MOST)]
    return "; ".join(parts)
