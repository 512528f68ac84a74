"""Which algorithms go together, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.contracts.contradiction import Contradiction
from service.contracts.dtypes import is_integer

# These change the float network or the types, and all numbers are found anew: what others have chosen is lost.
_AFRESH = ("cross_layer_equalization", "smooth_quant", "autopilot", "mixed_precision")
_LOST = {
    "autopilot": "the recipe that autopilot has chosen",
    "mixed_precision": "the types that mixed_precision has chosen",
    "bias_correction": "the biases that bias_correction has corrected",
    "adaround": "the integers that adaround has chosen",
    "adaquant": "the integers that adaquant has chosen",
}
# Of these one is enough: what both of them choose.
_EITHER = {("adaround", "adaquant"): "integers of weights", ("autopilot", "mixed_precision"): "types"}
_RANKS = {
    "cross_layer_equalization": 0,
    "smooth_quant": 1,
    "sensitivity": 2,
    "autopilot": 2,
    "mixed_precision": 2,
    "bias_correction": 3,
    "adaround": 4,
    "adaquant": 4,
}


def algorithm_contradictions(methods: Sequence[str], weight_dtypes: Sequence[str]) -> Iterator[Contradiction]:
    """One per algorithm that cannot follow those before it, or has nothing to work on.

    Args:
        methods: of the algorithms, in the order in which they run.
        weight_dtypes: all types that weights are given, mixed precision aside.
    """
    integers = "mixed_precision" in methods or any(is_integer(dtype) for dtype in weight_dtypes)
    for place, method in enumerate(methods):
        at, before = f"/algorithms/{place}", methods[:place]
        lost = next((other for other in before if other in _LOST), None)
        if method in before:
            yield Contradiction(at, f"{method} stands twice in algorithms")
        elif (both := _rivals(method, before)) is not None:
            yield Contradiction(at, f"{' and '.join(both)} both choose {_EITHER[both]}; leave one of them out")
        elif method in _AFRESH and lost is not None:
            wanted = ", ".join(in_order(methods))
            yield Contradiction(at, f"{method} would throw away {_LOST[lost]}; the right order is {wanted}")
        elif method == "adaround" and not integers:
            told = f"adaround rounds weights to integers, and none is one: they are {', '.join(weight_dtypes)}"
            yield Contradiction(at, f"{told}; adaquant can do it")


def _rivals(method: str, before: Sequence[str]) -> tuple[str, str] | None:
    """The pair of ``_EITHER`` that ``method`` makes complete."""
    return next((pair for pair in _EITHER if method in pair and any(other in pair for other in before)), None)


def in_order(methods: Sequence[str]) -> list[str]:
    """The methods in an order in which none undoes what another has done."""
    return sorted(methods, key=_RANKS.__getitem__)
