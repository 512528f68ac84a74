"""Ranges of the network's inputs by what the outputs make of them.

Features of very different size may share an input: a loudness beside spectral shapes, a coordinate beside a flag. The
square error of the tensor is then that of its largest feature, though the layers behind it may hardly look at that one.
Inputs are few and any grid of theirs can be tried on the float network alone, so that the outputs can decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from service.contracts.calibration import MseCalibration
from service.contracts.specs import ActivationSpec
from worker.quantizer.context import Context
from worker.quantizer.data import choose_batch_size
from worker.quantizer.evaluation.metrics import Distance, comparable
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.reducers import Range

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


@dataclass(frozen=True)
class _Case:
    feeds: dict[str, np.ndarray]
    outputs: list[np.ndarray]
    start: int


def settle_inputs(
    ranges: Mapping[str, Range], sources: Mapping[str, ActivationSpec], context: Context
) -> tuple[dict[str, Range], list[str]]:
    """Ranges of network inputs that serve the outputs better than those of the least square error.

    Each such range is halved, at one end or both, or doubled, as long as the outputs of the float network, with nothing
    but this input quantized, come closer to what they were.

    Args:
        ranges: as found by the methods of ``sources``; inputs calibrated by ``mse`` among them are looked at.
        sources: specs of all quantized tensors.
        context: of the run.

    Returns:
        the ranges that differ, and a sentence on each for the report.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    names = [
        tensor.name
        for tensor in context.inputs
        if tensor.name in ranges and isinstance(sources[tensor.name].calibration, MseCalibration)
    ]
    better: dict[str, Range] = {}
    notes = []
    few = list(_cases(context, _FEW)) if names else []
    for name in names:
        family = GridFamily.of(sources[name])
        found = _Trial(name, family, few, context).settle(ranges[name])
        if found == ranges[name]:
            continue
        trial = _Trial(name, family, list(_cases(context, _MANY)), context)
        gain = trial.sqnr_db(found) - trial.sqnr_db(ranges[name])
        if gain > _WORTH_DB:
            better[name] = found
            notes.append(
                f"input {name!r}: its range is [{found.minimum:g}, {found.maximum:g}], which brings the outputs "
                f"{gain:.1f} dB closer than [{ranges[name].minimum:g}, {ranges[name].maximum:g}] of the least square "
                "error"
            )
    return better, notes


def _cases(context: Context, samples: int) -> Iterator[_Case]:
    """The first samples, and the float network's outputs for them."""
    session, held = context.float_session, 0
    size = choose_batch_size(context.inputs, context.calibration, _BATCH)
    limit = min(samples, context.calibration_samples)
    for batch in context.calibration.batches(context.inputs, size, limit=limit):
        context.run.check()
        outputs = session.run(batch.feeds, session.output_names, start=batch.start)
        yield _Case(dict(batch.feeds), outputs, batch.start)
        held += sum(array.size for array in (*batch.feeds.values(), *outputs))
        if held > _MOST_ELEMENTS:
            return


class _Trial:
    """The outputs with one input quantized."""

    def __init__(self, name: str, family: GridFamily, cases: list[_Case], context: Context) -> None:
        self._name, self._family, self._cases, self._context = name, family, cases, context
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
        """Of the worst output; -inf if it is not finite, +inf if there is no output of floats."""
        if tried not in self._known:
            self._known[tried] = self._measure(tried)
        return self._known[tried]

    def _measure(self, tried: Range) -> float:
        scale, zero = self._family.parameters(np.asarray(tried.minimum), np.asarray(tried.maximum))
        session = self._context.float_session
        distances: dict[int, Distance] = {}
        for case in self._cases:
            self._context.run.check()
            exact = case.feeds[self._name]
            rounded = self._family.fake(exact.astype(np.float64), scale, zero).astype(exact.dtype)
            got = session.run({**case.feeds, self._name: rounded}, session.output_names, start=case.start)
            for k, (one, other) in enumerate(zip(case.outputs, got, strict=True)):
                if comparable(one, other):
                    distances.setdefault(k, Distance()).update(one, other)
        figures = [distance.sqnr_db for distance in distances.values()]
        return min((-np.inf if figure is None else figure for figure in figures), default=np.inf)
