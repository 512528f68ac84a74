"""What all algorithms have in common, and what each declares of itself: its place, and what it does to others."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema

from service.contracts.base import Contract, declared_values

AUTO = "auto"
# Key in a field's json_schema_extra: what ``auto`` chooses from, the first where nothing is better.
ALTERNATIVES = "alternatives"
# Said in two parts: generators of clients take no enumeration of texts and other values.
Choice = Annotated[
    bool | Literal["auto"], WithJsonSchema({"anyOf": [{"type": "boolean"}, {"const": "auto", "type": "string"}]})
]


# An error of a twentieth of the signal: distances between outputs, and thresholds on them, hold to a few percent.
LOST_SQNR_DB = 26.0
# Decisions that change cost at most as many points of accuracy. Calibration samples are often those of the training, of
# which a model is surer than of others.
LOST_DECISIONS_PERCENT = 0.5
# How many times as many decisions, and as much noise power, a large loss is: worth steps that take long.
_LARGE, _LARGE_DB = 10.0, 10.0
# What costs nothing when the model runs is tried from a smaller error on: states and embeddings are read by networks
# and thresholds that are not known.
SMOOTHED_SQNR_DB = 35.0


class AlgorithmBase(Contract):
    """A step after calibration that improves the quantized model."""

    # its place in the order in which none undoes what another has done; equal places may stand either way
    place: ClassVar[int]
    # it changes the float network or the types, so that all numbers are found anew: what others have chosen is lost
    starts_afresh: ClassVar[bool] = False
    choice: ClassVar[str | None] = None  # what it chooses and a later fresh start would lose, in words; None: nothing
    final: ClassVar[bool] = False  # it trains what all others have reached: what would choose anew after it is refused
    # methods that choose the same as it does -> what both choose. Of these one is enough; one of the two declares it.
    excludes: ClassVar[dict[str, str]] = {}
    # it rounds weights to integers; the method to take where none is one. None: any type will do.
    without_integers: ClassVar[str | None] = None
    may_give_integers: ClassVar[bool] = False  # weights may get integer types of it, whatever they have in the config
    modes: ClassVar[tuple[str, ...]] = ("static",)  # of quantization that it is for
    needs_data: ClassVar[bool] = True  # it learns from calibration data; else it does without where there is none

    accept: Literal["if_better", "if_better_at_end", "reconsidered", "always"] = Field(
        default="if_better",
        description=(
            "if_better: undone, with a note in the report, if it makes the model worse on held-out "
            "calibration samples; if_better_at_end: all later steps run with and without it, and the better "
            "result is kept, which doubles their time; reconsidered: as if_better at first, and as "
            "if_better_at_end where the model then still loses something (see when); always: kept in any case."
        ),
    )

    when: Literal["always", "loss", "large_loss"] = Field(
        default="always",
        description=(
            "loss: run only if the model so far loses something on held-out calibration samples: more than "
            f"{LOST_DECISIONS_PERCENT:g} % of its decisions are expected to differ from the float model's, or an "
            f"output without class scores has an SQNR below {LOST_SQNR_DB:g} dB (smooth_quant: {SMOOTHED_SQNR_DB:g} "
            f"dB); large_loss: only if it loses ten times that: {_LARGE * LOST_DECISIONS_PERCENT:g} % or an SQNR below "
            f"{LOST_SQNR_DB - _LARGE_DB:g} dB; always: run in any case."
        ),
    )

    @property
    def lost_sqnr_db(self) -> float:
        """Below this SQNR in dB an output without class scores has lost what it runs on."""
        return LOST_SQNR_DB - (_LARGE_DB if self.when == "large_loss" else 0.0)

    @property
    def lost_percent(self) -> float:
        """Above this share of other decisions a model has lost what it runs on."""
        return LOST_DECISIONS_PERCENT * (_LARGE if self.when == "large_loss" else 1.0)

    @property
    def cannot_do_without_data(self) -> bool:
        """True if it is an error to run it without calibration data; what waits for a loss is left out instead."""
        return self.needs_data and self.when == "always"

    @property
    def is_judged(self) -> bool:
        """True if it is kept only where it makes the model no worse."""
        return self.accept != "always"

    @property
    def holds_samples_back(self) -> bool:
        """True if calibration samples are held back for judging it, or what is there before it."""
        return self.is_judged or self.when != "always"

    @property
    def least_gain_db(self) -> float:
        """What it must gain in SQNR to be kept, unless the metric is surely better: what it costs is worth no less."""
        return 0.0

    @property
    def open_knobs(self) -> dict[str, tuple[Any, ...]]:
        """The values to choose from, by field, of the fields that are ``auto``."""
        alternatives = declared_values(type(self), ALTERNATIVES)
        return {name: values for name, values in alternatives.items() if getattr(self, name) == AUTO}

    def variants(self) -> tuple[Self, ...]:
        """The algorithm with a value in the place of every ``auto``, in all combinations."""
        knobs = self.open_knobs
        choices = (dict(zip(knobs, values, strict=True)) for values in product(*knobs.values()))
        return tuple(self.model_copy(update=chosen) for chosen in choices)
