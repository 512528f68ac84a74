"""What all algorithms have in common, and what each declares of itself: its place, and what it does to others."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from service.contracts.base import Contract


class AlgorithmBase(Contract):
    """A step that is to make the quantized model better than calibration alone leaves it.

    Attributes:
        place: its place in the order in which none undoes what another has done; equal places may stand either way.
        starts_afresh: it changes the float network or the types, so that all numbers are found anew: what others have
            chosen is lost.
        choice: what it chooses and a later fresh start would lose, in words; None: nothing.
        final: it trains what all others have reached: what would choose anew after it is refused.
        excludes: methods that choose the same as it does -> what both choose. Of these one is enough; one of the two
            declares it.
        without_integers: it rounds weights to integers; the method to take where none is one. None: any type will do.
        may_give_integers: weights may get integer types of it, whatever they have in the config.
    """

    place: ClassVar[int]
    starts_afresh: ClassVar[bool] = False
    choice: ClassVar[str | None] = None
    final: ClassVar[bool] = False
    excludes: ClassVar[dict[str, str]] = {}
    without_integers: ClassVar[str | None] = None
    may_give_integers: ClassVar[bool] = False

    accept: Literal["if_better", "always"] = Field(
        default="if_better",
        description=(
            "if_better: undone, with a word in the report, if the model is worse with the step than without it on "
            "samples of the calibration set that the step did not see; always: kept whatever it does."
        ),
    )
