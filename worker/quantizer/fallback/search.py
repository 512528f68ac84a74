"""Takes Q/DQ pairs off region by region: what each costs is measured, and what costs more than it saves goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.contracts.errors import CanceledError, QuantmillError
from service.contracts.report import LatencyFigures, RegionFigures
from worker.quantizer.fallback.regions import Region
from worker.quantizer.precision.autopilot.deadline import OutOfTimeError
from worker.quantizer.refine.draft import Draft, Quantized

_OUT_OF_TIME = "the seconds of evaluation.fallback_seconds were used up"


@dataclass(frozen=True)
class Placement:
    """Where Q/DQ pairs stand.

    Attributes:
        draft: with its plan.
        done: the same, written.
        off: names of the nodes that were taken off.
    """

    draft: Draft
    done: Quantized
    off: frozenset[str] = frozenset()


class Stopwatch(Protocol):
    """Times two models in turn."""

    def __call__(self, reference: Placement, other: Placement) -> LatencyFigures:
        """Figures whose ratio is that of the second over the first."""


@dataclass(frozen=True)
class _Tried:
    region: Region
    figures: LatencyFigures


def take_off(
    planned: Placement,
    found: Sequence[Region],
    make: Callable[[frozenset[str]], Placement],
    stopwatch: Stopwatch,
    *,
    enough: Callable[[], bool] = lambda: False,
) -> tuple[list[Placement], list[RegionFigures]]:
    """Placements with ever fewer pairs, each faster than the one before by the whole interval.

    Every region is tried by itself, beside the planned placement. Those that cost time are then taken off one after
    another, those that cost most first, and each stays off only if the model is faster for it once more: beside the
    others it may cost nothing, and what was the best of many by chance is not so twice.

    Args:
        planned: to begin with.
        found: regions to try, in their order.
        make: the placement without these nodes.
        stopwatch: times two of them.
        enough: True once no more regions are to be tried by themselves, so that there is time to join them.

    Raises:
        CanceledError: the run was canceled.
    """
    tried: list[_Tried] = []
    told: dict[Region, RegionFigures] = {}
    placements: list[Placement] = []
    for region in found:
        told[region] = _untried(region, _OUT_OF_TIME)
    try:
        for region in found:
            if enough():
                break
            try:
                figures = stopwatch(planned, make(region.nodes))
            except CanceledError:
                raise
            except QuantmillError as error:
                told[region] = _untried(region, error.detail)
                continue
            tried.append(_Tried(region, figures))
            told[region] = _measured(region, figures)
        _join(planned, tried, make, stopwatch, placements, told)
    except OutOfTimeError:
        pass  # what was not tried says so
    return placements, [told[region] for region in found]


def _join(
    planned: Placement,
    tried: Sequence[_Tried],
    make: Callable[[frozenset[str]], Placement],
    stopwatch: Stopwatch,
    placements: list[Placement],
    told: dict[Region, RegionFigures],
) -> None:
    """Take off what costs time, one region after another."""
    current = planned
    for one in _slow(tried):
        if one.region.nodes <= current.off:
            told[one.region] = told[one.region].model_copy(update={"outcome": "taken_off"})
            continue
        other = make(current.off | one.region.nodes)
        if stopwatch(current, other).ratio_interval.high < 1.0:
            current = other
            placements.append(other)
            told[one.region] = told[one.region].model_copy(update={"outcome": "taken_off"})


def _slow(tried: Sequence[_Tried]) -> list[_Tried]:
    """Regions without which the model is surely faster, the one that costs most first."""
    slow = [one for one in tried if one.figures.ratio_interval.high < 1.0]
    return sorted(slow, key=lambda one: one.figures.ratio)


def _measured(region: Region, figures: LatencyFigures) -> RegionFigures:
    return RegionFigures(
        kind=region.kind,
        nodes=tuple(sorted(region.nodes)),
        ratio=figures.ratio,
        ratio_interval=figures.ratio_interval,
        outcome="kept",
    )


def _untried(region: Region, why: str) -> RegionFigures:
    return RegionFigures(kind=region.kind, nodes=tuple(sorted(region.nodes)), outcome="untried", why=why)
