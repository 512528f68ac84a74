"""The algorithms that there are, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, get_args

from pydantic import Field

from service.contracts.algorithms.base import AlgorithmBase
from service.contracts.algorithms.equalization import (
    Awq,
    BiasCorrection,
    CrossLayerEqualization,
    OutlierChannels,
    SmoothQuant,
)
from service.contracts.algorithms.finetune import AdaQuant, AdaRound
from service.contracts.algorithms.precision import Autopilot, MixedPrecision, SelectivePrecision, SensitivityAnalysis
from service.contracts.algorithms.training import QuantizationAwareTraining
from service.contracts.specs import is_integer
from service.contracts.validation import Contradiction

Algorithm = Annotated[
    CrossLayerEqualization
    | OutlierChannels
    | SmoothQuant
    | Awq
    | BiasCorrection
    | AdaRound
    | AdaQuant
    | QuantizationAwareTraining
    | SensitivityAnalysis
    | MixedPrecision
    | SelectivePrecision
    | Autopilot,
    Field(discriminator="method"),
]

MaxSeconds = Annotated[
    float | None,
    Field(
        gt=0,
        description=(
            "Time limit of all algorithms together, in seconds; null: no limit. Behind it no algorithm begins, "
            "reconstruction leaves layers as they are that it has not reached, and an algorithm that is judged with "
            "all later steps is judged at once where they cannot run twice. The report says what was left out."
        ),
    ),
]

ALGORITHMS: dict[str, type[AlgorithmBase]] = {
    member.model_fields["method"].default: member for member in get_args(get_args(Algorithm)[0])
}


def algorithm_contradictions(methods: Sequence[str], weight_dtypes: Sequence[str]) -> Iterator[Contradiction]:
    """One per algorithm that cannot follow those before it, or has nothing to work on.

    Args:
        methods: of the algorithms, in the order in which they run.
        weight_dtypes: all types that weights are given, mixed precision aside.
    """
    integers = any(ALGORITHMS[method].may_give_integers for method in methods) or any(map(is_integer, weight_dtypes))
    for place, method in enumerate(methods):
        at, before, algorithm = f"/algorithms/{place}", methods[:place], ALGORITHMS[method]
        lost = next(
            (choice for other in before if (choice := ALGORITHMS[other].choice) and _undoes(method, other)), None
        )
        if method in before:
            yield Contradiction(at, f"{method} occurs twice in algorithms")
        elif (both := _rivals(method, before)) is not None:
            chosen = ALGORITHMS[both[0]].excludes[both[1]]
            yield Contradiction(at, f"{' and '.join(both)} both choose {chosen}; remove one of them")
        elif lost is not None:
            wanted = ", ".join(in_order(methods))
            yield Contradiction(at, f"{method} would discard {lost}; the right order is {wanted}")
        elif algorithm.without_integers is not None and not integers:
            told = f"{method} rounds weights to integers, and none is one: they are {', '.join(weight_dtypes)}"
            yield Contradiction(at, f"{told}; {algorithm.without_integers} can do it")


def _undoes(method: str, other: str) -> bool:
    """True if ``method``, run after ``other``, would lose what that has chosen."""
    algorithm, earlier = ALGORITHMS[method], ALGORITHMS[other]
    chooses_anew = algorithm.choice is not None and algorithm.place < earlier.place
    return algorithm.starts_afresh or (earlier.final and chooses_anew)


def _rivals(method: str, before: Sequence[str]) -> tuple[str, str] | None:
    """``method`` and the first of ``before`` that it cannot stand beside, the one that excludes the other first."""
    pairs = [pair for other in before for pair in ((method, other), (other, method))]
    return next((pair for pair in pairs if pair[1] in ALGORITHMS[pair[0]].excludes), None)


def in_order(methods: Sequence[str]) -> list[str]:
    """The methods in an order in which none undoes what another has done."""
    return sorted(methods, key=lambda method: ALGORITHMS[method].place)
