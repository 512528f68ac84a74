"""What earlier runs teach: factors on what a run should take, from all of them and from those of the same model.

Everything is added up in logarithms: a factor is the mean of what was found, drawn towards 1 as if some runs more had
found that (ridge regression on indicators, one at a time from the coarse to the fine).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.estimates.prior import Prior

Basis = Literal["graph", "timed", "history"]
# Runs whose weight "no difference" has: for a stage everywhere, and for a stage of one model.
_EVERYWHERE, _OF_MODEL = 1.0, 0.3
# A run by the same recipe tells so much more than another of that model.
_SAME_RECIPE = 4.0
# Of what is found in some stages of a model, as much is believed of its others.
_CARRIED_OVER = 0.6
# A run that took far less memory than it should says little of others, and too little is worse than too much.
_LEAST_MEMORY_LOG = -0.2
# Sizes are well known: what is further off is a model of an odd kind, and no rule.
_ODD_SIZE_LOG = 0.05
# Shorter stages are noise.
_NOISE_SECONDS = 0.01
_MOST_LOG = 2.5
# Standard deviations of logarithms before anything was seen, and how many runs that counts as.
_SPREAD: dict[Basis, tuple[float, float, float]] = {
    "graph": (0.6, 0.3, 0.15),
    "timed": (0.4, 0.25, 0.1),
    "history": (0.25, 0.12, 0.05),
}
_SPREAD_RUNS = 4.0
# Earlier runs of one model that are looked at, and of all runs those on which estimates are judged.
OF_MODEL, _JUDGED = 20, 300
# Of a normal distribution, 80 % lie within; and memory is told so that it is rarely too little.
_RANGE_DEVIATIONS, _MEMORY_DEVIATIONS = 1.28, 1.3


@dataclass(frozen=True)
class Run:
    """A run that has succeeded.

    Attributes:
        model: whose, as a key.
        recipe: by which config, as a key.
        prior: what it should have taken.
        stages: seconds of each stage that it had, with those of starting.
        memory_bytes: at its highest.
        size_bytes: of the quantized model.
    """

    model: str
    recipe: str
    prior: Prior
    stages: Mapping[str, float]
    memory_bytes: float
    size_bytes: float

    @property
    def seconds(self) -> float:
        """From its start to its end."""
        return sum(self.stages.values())


@dataclass(frozen=True)
class Fit:
    """What all runs teach, in logarithms; without any, nothing.

    Attributes:
        stages: factor of each stage.
        memory: factor of the memory.
        size: factor of the size.
        spread: standard deviations of seconds, memory and size, by what an estimate is based on.
        runs: that were seen.
    """

    stages: dict[str, float] = field(default_factory=dict)
    memory: float = 0.0
    size: float = 0.0
    spread: dict[Basis, tuple[float, float, float]] = field(default_factory=lambda: dict(_SPREAD))
    runs: int = 0


@dataclass(frozen=True)
class Forecast:
    """What a run will take: expected, lowest and highest of each.

    Attributes:
        seconds: from its start to its end.
        memory_bytes: at its highest; the expected one leaves room.
        size_bytes: of the quantized model.
        basis: what it is based on.
    """

    seconds: tuple[float, float, float]
    memory_bytes: tuple[float, float, float]
    size_bytes: tuple[float, float, float]
    basis: Basis


def fitted(runs: Sequence[Run]) -> Fit:
    """What runs teach; the newest come first."""
    if not runs:
        return Fit()
    many = Counter(run.model for run in runs)
    weights = [1.0 / math.sqrt(many[run.model]) for run in runs]
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run, weight in zip(runs, weights, strict=True):
        for name, ratio in _ratios(run, {}).items():
            found[name].append((ratio, weight))
    coarse = Fit(
        stages={name: _drawn(pairs, _EVERYWHERE) for name, pairs in sorted(found.items())},
        memory=_drawn(
            [
                (max(_log(run.memory_bytes, run.prior.memory_bytes), _LEAST_MEMORY_LOG), weight)
                for run, weight in zip(runs, weights, strict=True)
            ],
            _EVERYWHERE,
        ),
        size=_drawn(
            [
                (max(-_ODD_SIZE_LOG, min(_ODD_SIZE_LOG, _log(run.size_bytes, run.prior.size_bytes))), weight)
                for run, weight in zip(runs, weights, strict=True)
            ],
            _EVERYWHERE,
        ),
        runs=len(runs),
    )
    return Fit(coarse.stages, coarse.memory, coarse.size, _spread(runs, coarse), len(runs))


def forecast(prior: Prior, recipe: str, fit: Fit, own: Sequence[Run]) -> Forecast:
    """What a run will take.

    Args:
        prior: what it should take.
        recipe: by which config, as a key.
        fit: what all runs teach.
        own: earlier runs of the same model.
    """
    seconds, memory, size = _expected(prior, recipe, fit, own)
    basis: Basis = "history" if own else "timed" if prior.timed else "graph"
    of_seconds, of_memory, of_size = fit.spread[basis]
    return Forecast(
        seconds=_range(seconds, of_seconds),
        memory_bytes=_range(memory * math.exp(_MEMORY_DEVIATIONS * of_memory), of_memory),
        size_bytes=_range(size, of_size),
        basis=basis,
    )


def _expected(prior: Prior, recipe: str, fit: Fit, own: Sequence[Run]) -> tuple[float, float, float]:
    weights = [_SAME_RECIPE if run.recipe == recipe else 1.0 for run in own]
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    carried = []
    for run, weight in zip(own, weights, strict=True):
        for name, ratio in _ratios(run, fit.stages).items():
            found[name].append((ratio, weight))
            if name != "start":
                carried.append((ratio, weight * run.stages[name]))
    effects = {name: _drawn(pairs, _OF_MODEL) for name, pairs in found.items()}
    total = sum(weight for _, weight in carried)
    other = _CARRIED_OVER * sum(ratio * weight for ratio, weight in carried) / total if total else 0.0
    seconds = sum(
        value * math.exp(fit.stages.get(name, 0.0) + effects.get(name, 0.0 if name == "start" else other))
        for name, value in prior.stages.items()
    )
    seconds += _unforeseen(prior, recipe, own)
    # less by another recipe, such as one that holds no inputs of layers, says nothing of this one
    memory = [
        (ratio if run.recipe == recipe else max(ratio, 0.0), weight)
        for run, weight in zip(own, weights, strict=True)
        for ratio in [_log(run.memory_bytes, run.prior.memory_bytes) - fit.memory]
    ]
    size = [(_log(run.size_bytes, run.prior.size_bytes) - fit.size, w) for run, w in zip(own, weights, strict=True)]
    return (
        seconds,
        prior.memory_bytes * math.exp(fit.memory + _drawn(memory, _OF_MODEL)),
        prior.size_bytes * math.exp(fit.size + _drawn(size, _OF_MODEL)),
    )


def _unforeseen(prior: Prior, recipe: str, own: Sequence[Run]) -> float:
    """Seconds of stages that nothing foretold, as they were in the same model's runs by the same recipe."""
    same = [run for run in own if run.recipe == recipe]
    extra = [sum(taken for name, taken in run.stages.items() if name not in prior.stages) for run in same]
    return sum(extra) / len(extra) if extra else 0.0


def _ratios(run: Run, factors: Mapping[str, float]) -> dict[str, float]:
    """By stage, the logarithm of what it took beside what it should have taken."""
    return {
        name: _log(taken + _NOISE_SECONDS, run.prior.stages[name] * math.exp(factors.get(name, 0.0)) + _NOISE_SECONDS)
        for name, taken in run.stages.items()
        if name in run.prior.stages
    }


def _spread(runs: Sequence[Run], fit: Fit) -> dict[Basis, tuple[float, float, float]]:
    """How far estimates are from what came, each run by the others of its model, and by none of them."""
    of_model: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        of_model[run.model].append(run)
    errors: dict[Basis, list[tuple[float, float, float]]] = defaultdict(list)
    for run in runs[:_JUDGED]:
        others = [other for other in of_model[run.model][: OF_MODEL + 1] if other is not run]
        for own in ([], others) if others else ([],):
            told = _expected(run.prior, run.recipe, fit, own)
            basis: Basis = "history" if own else "timed" if run.prior.timed else "graph"
            came = (run.seconds, run.memory_bytes, run.size_bytes)
            memory = max(_log(came[1], told[1]), _LEAST_MEMORY_LOG)
            errors[basis].append((_log(came[0], told[0]), memory, _log(came[2], told[2])))
    return {basis: _deviations(errors[basis], before) for basis, before in _SPREAD.items()}


def _deviations(
    errors: Sequence[tuple[float, float, float]], before: tuple[float, float, float]
) -> tuple[float, float, float]:
    first, second, third = (
        math.sqrt((_SPREAD_RUNS * sigma**2 + sum(error[k] ** 2 for error in errors)) / (_SPREAD_RUNS + len(errors)))
        for k, sigma in enumerate(before)
    )
    return first, second, third


def _drawn(pairs: Iterable[tuple[float, float]], towards_nothing: float) -> float:
    """Weighted mean, as if something more had found no difference."""
    total, weights = 0.0, towards_nothing
    for value, weight in pairs:
        total += value * weight
        weights += weight
    return total / weights


def _log(found: float, told: float) -> float:
    ratio = math.log(max(found, 1e-9) / max(told, 1e-9))
    return max(-_MOST_LOG, min(_MOST_LOG, ratio))


def _range(expected: float, sigma: float) -> tuple[float, float, float]:
    factor = math.exp(_RANGE_DEVIATIONS * sigma)
    return expected, expected / factor, expected * factor
