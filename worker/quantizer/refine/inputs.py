"""Ranges of the network's inputs by what the outputs make of them.

Features of very different size may share an input: a loudness beside spectral shapes, a coordinate beside a flag. The
square error of the tensor is then that of its largest feature, though the layers behind it may hardly look at that one.
Inputs are few and any grid of theirs can be tried on the float network alone, so that the outputs can decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from service.contracts.specs import ActivationSpec, MseCalibration
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import Expected, side_by_side
from worker.quantizer.refine.case import Case
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.observers import Range

# Samples that ranges are searched on, and that the outcome has to prove itself on.
_FEW, _MANY = 8, 32
# The float network's session keeps the memory of its largest batch.
_BATCH = 1
# Elements of feeds and outputs that are held at once.
_MOST_ELEMENTS = 8_000_000
# A move is made if the outputs come closer by this much.
_WORTH_DB = 0.5
_MOST_STEPS = 24
# By what the ends of a range are multiplied.
_MOVES = ((0.5, 0.5), (1.0, 0.5), (0.5, 1.0), (2.0, 2.0))


def settle_inputs(
    ranges: Mapping[str, Range], sources: Mapping[str, ActivationSpec], case: Case, services: Services
) -> tuple[dict[str, Range], list[str]]:
    """Ranges of network inputs that serve the outputs better than those of the least square error.

    Each such range is halved, at one end or both, or doubled, as long as the outputs of the float network, with nothing
    but this input quantized, come closer to what they were.

    Args:
        ranges: as found by the methods of ``sources``; inputs calibrated by ``mse`` among them are looked at.
        sources: specs of all quantized tensors.
        case: what is quantized.
        services: of the run.

    Returns:
        the ranges that differ, and a sentence on each for the report.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    names = [
        tensor.name
        for tensor in case.inputs
        if tensor.name in ranges and isinstance(sources[tensor.name].calibration, MseCalibration)
    ]
    better: dict[str, Range] = {}
    notes = []
    few = _expected(case, services, _FEW) if names else []
    for name in names:
        family = GridFamily.of(sources[name])
        found = _Trial(name, family, few, case, services).settle(ranges[name])
        if found == ranges[name]:
            continue
        trial = _Trial(name, family, _expected(case, services, _MANY), case, services)
        gain = trial.sqnr_db(found) - trial.sqnr_db(ranges[name])
        if gain > _WORTH_DB:
            better[name] = found
            notes.append(
                f"input {name!r}: its range is [{found.minimum:g}, {found.maximum:g}], which brings the outputs "
                f"{gain:.1f} dB closer than [{ranges[name].minimum:g}, {ranges[name].maximum:g}] of the least square "
                "error"
            )
    return better, notes


def _expected(case: Case, services: Services, samples: int) -> list[Expected]:
    """The first samples, as many as may be held, and the float network's outputs for them."""
    found, held = [], 0
    for expected in case.expected_outputs(services.run, batch_size=_BATCH, last=samples):
        found.append(expected)
        held += sum(array.size for array in expected.arrays)
        if held > _MOST_ELEMENTS:
            break
    return found


class _Trial:
    """The outputs with one input quantized."""

    def __init__(self, name: str, family: GridFamily, expected: list[Expected], case: Case, services: Services) -> None:
        self._name, self._family, self._expected = name, family, expected
        self._case, self._services = case, services
        self._known: dict[Range, float] = {}

    def settle(self, found: Range) -> Range:
        """The range that is reached from ``found`` by the best moves, until none is worth it."""
        if not (np.isfinite(found.minimum) and np.isfinite(found.maximum)) or found.minimum == found.maximum:
            return found
        best = found
        moves = [(low, high) for low, high in _MOVES if low == high or not self._family.symmetric]
        for _ in range(_MOST_STEPS):
            tried = max((Range(best.minimum * low, best.maximum * high) for low, high in moves), key=self.sqnr_db)
            if not self.sqnr_db(tried) > self.sqnr_db(best) + _WORTH_DB:
                break
            best = tried
        return best

    def sqnr_db(self, tried: Range) -> float:
        """Of the worst output; -inf if it is not finite, or there is no output of floats."""
        if tried not in self._known:
            self._known[tried] = self._measure(tried)
        return self._known[tried]

    def _measure(self, tried: Range) -> float:
        scale, zero = self._family.parameters(np.asarray(tried.minimum), np.asarray(tried.maximum))

        def quantized(one: Expected) -> Expected:
            exact = one.batch.feeds[self._name]
            rounded = self._family.fake(exact.astype(np.float64), scale, zero).astype(exact.dtype)
            return replace(one, batch=replace(one.batch, feeds={**one.batch.feeds, self._name: rounded}))

        case, services, distances = self._case, self._services, Distances()
        for twins in side_by_side(case.float_session, map(quantized, self._expected), services.run):
            distances.update(twins.pairs())
        return -np.inf if distances.worst_db is None else distances.worst_db
