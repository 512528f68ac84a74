"""The sanity check: a quantized model that lost what the float model can do fails, whatever the gate asks for.

With f the float model's value, c the chance level and q the quantized model's value, the model has collapsed where q is
not better than the middle of c and f: more than half of the margin over chance is lost. Perplexities are compared by
their logarithm. Where no metric with a known chance level can be judged, the agreement with the float model takes its
place, with the agreement of independent decisions as chance (as in Cohen's kappa, 1960), and where the output holds no
classes the SQNR of the worst output, which must be above 0 dB: below, the error is larger than the signal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.evaluation import AGREEMENT
from service.contracts.report import Fidelity, GateClause, Interval, MetricFigures
from service.contracts.report.figures import SANITY

SQNR = "sqnr_db"
# Values that a model without any skill has, where chance is not known from the data.
_WORST = {
    **dict.fromkeys(("f1", "precision", "recall", "mean_iou", "map", "per_class_accuracy"), 0.0),
    "word_error_rate": 100.0,
}
# Less than this share of the margin left is "near chance".
_NEAR = 0.1
# Fewer samples than these make a figure undecided, and then nothing is said.
_FEWEST = 10


@dataclass(frozen=True)
class _Margin:
    """What the float model has above chance, and what is left of it.

    Attributes:
        metric: its name.
        unit: of the metric.
        value: of the quantized model.
        chance: without any skill.
        limit: the middle between chance and the float model's value.
        left: share of the margin that is left; below 0: worse than chance.
        higher: which side of the limit is good.
        interval: where the value is.
        samples: that it was measured on.
    """

    metric: str
    unit: str
    value: float
    chance: float
    limit: float
    left: float
    higher: bool
    interval: Interval | None
    samples: int


def sanity_clause(
    metrics: Sequence[MetricFigures], fidelity: Fidelity, decisions: Mapping[str, np.ndarray]
) -> GateClause | None:
    """The clause that a collapsed model breaks; None for a sane model, and where nothing can be judged.

    Where the interval of the figure contains the limit the clause is undecided.

    Args:
        metrics: of both models, with their chance levels.
        fidelity: of the outputs.
        decisions: of both models, sample by sample, as for ``samples.npz``.
    """
    if fidelity.source == "random":
        return None
    margins = [margin for margin in (_margin(metric, fidelity.samples) for metric in metrics) if margin is not None]
    if not margins:
        agreement = _agreement(fidelity, decisions)
        if agreement is None:
            return _by_sqnr(fidelity)
        margins = [agreement]
    return next((clause for clause in map(_clause, margins) if clause is not None), None)


def _margin(metric: MetricFigures, samples: int) -> _Margin | None:
    chance = metric.chance if metric.chance is not None else _WORST.get(metric.kind)
    before, after, higher = metric.float_, metric.quantized, metric.better == "higher"
    if chance is None or before is None or after is None or not _shows_skill(metric, before, chance):
        return None
    if metric.kind == "perplexity":
        if min(before, after) <= 0:
            return None
        limit = math.sqrt(before * chance)
        left = math.log(chance / after) / math.log(chance / before)
    else:
        limit, left = (before + chance) / 2, (after - chance) / (before - chance)
    return _Margin(
        metric.name, metric.unit, after, chance, round(limit, 4), left, higher, metric.quantized_interval,
        metric.samples or samples,
    )  # fmt: skip


def _shows_skill(metric: MetricFigures, before: float, chance: float) -> bool:
    """True if the float model is better than chance by its whole interval."""
    interval = metric.float_interval
    if metric.better == "higher":
        return before > chance and (interval is None or interval.low > chance)
    return before < chance and (interval is None or interval.high < chance)


def _agreement(fidelity: Fidelity, decisions: Mapping[str, np.ndarray]) -> _Margin | None:
    value, before, after = fidelity.top1_agreement, decisions.get("float_class"), decisions.get("quantized_class")
    if value is None or before is None or after is None or not len(before):
        return None
    if np.unique(before).size < 2:  # what decides for one class on all samples agrees by chance
        return None
    chance = 100.0 * _independent(before, after)
    if chance >= 100.0:
        return None
    left = (value - chance) / (100.0 - chance)
    limit = round((100.0 + chance) / 2, 4)
    interval = fidelity.top1_agreement_interval
    return _Margin(AGREEMENT, "%", value, chance, limit, left, higher=True, interval=interval, samples=len(before))


def _independent(before: np.ndarray, after: np.ndarray) -> float:
    """Share of samples on which two models agree that decide as often for each class, whatever the sample."""
    classes, places = np.unique(np.concatenate([before, after]), return_inverse=True)
    shares = [np.bincount(part, minlength=len(classes)) / len(before) for part in np.split(places.reshape(-1), 2)]
    return float(shares[0] @ shares[1])


def _by_sqnr(fidelity: Fidelity) -> GateClause | None:
    value, interval = fidelity.sqnr_db, fidelity.sqnr_interval_db
    if value is None or value > 0.0:
        return None
    surely = interval is None or interval.high < 0.0
    why = f"collapsed: output SQNR is {value:.2f} dB, the error is larger than the output"
    return _broken(SQNR, 0.0, value, interval, why, fidelity.samples, surely=surely)


def _clause(margin: _Margin) -> GateClause | None:
    """None for what keeps more than half of the margin."""
    if margin.left > 0.5:
        return None
    interval = margin.interval
    if interval is None:
        surely = True
    else:
        surely = interval.high < margin.limit if margin.higher else interval.low > margin.limit
    unit = f" {margin.unit}".rstrip()
    chance = f"chance level ({_number(margin.chance, margin.unit)}{unit})"
    title = {"top1": "top-1", "top5": "top-5", AGREEMENT: "top-1 agreement"}.get(margin.metric, margin.metric)
    value = f"{title} {_number(margin.value, margin.unit)}{unit}"
    if margin.left < _NEAR:
        why = f"collapsed: {value} is {'below' if margin.left < 0 else 'near'} {chance}"
    else:
        why = f"collapsed: {value} lost {100 * (1 - margin.left):.0f} % of the float model's margin over {chance}"
    return _broken(margin.metric, margin.limit, margin.value, interval, why, margin.samples, surely=surely)


def _broken(
    metric: str, limit: float, value: float, interval: Interval | None, why: str, samples: int, *, surely: bool
) -> GateClause | None:
    if not surely and samples < _FEWEST:
        return None
    if not surely:
        why = f"{why.replace('collapsed', 'possibly collapsed', 1)}; {samples} samples cannot decide it"
    return GateClause(
        clause=SANITY,
        metric=metric,
        wanted=limit,
        got=value,
        holds=False if surely else None,
        interval=interval,
        why=why,
    )


def _number(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit == "%" else f"{value:.5g}"
