"""Carries the errors of many layers to the output in one walk through the float network.

Every layer's error starts where it arises and travels on from there: behind a layer the network runs on the clean
samples and, stacked onto them, on one disturbed copy per error that has started so far. No prefix is run twice, and
errors are real ones, not models of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from worker.quantizer.precision.segments import Segment, Segmented
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session

_CLEAN = -1
# Elements of all inputs of one run, so that they stay in the processor's cache; what more there is runs in parts.
_MOST_ELEMENTS = 1_000_000
_Disturb = Callable[[np.ndarray], np.ndarray]
_Copies = dict[int, np.ndarray]


@dataclass(frozen=True)
class WeightError:
    """The weight of a layer in another value."""

    initializer: str
    values: np.ndarray


@dataclass(frozen=True)
class ActivationError:
    """A tensor as ``disturb`` leaves it, for all that read it."""

    tensor: str
    disturb: _Disturb


class Propagation:
    """The float network with errors that start in it.

    Args:
        network: cut behind every disturbed tensor, and before every node with a disturbed weight.
        errors: what starts where.
        stackable: the network takes any number of samples, so that copies may be run together.
        run: asked whether to stop.
    """

    def __init__(
        self, network: Segmented, errors: list[WeightError | ActivationError], *, stackable: bool, run: Run
    ) -> None:
        self._network = network
        self._stackable = stackable
        self._run = run
        self._weights: dict[str, list[int]] = {}
        self._tensors: dict[str, list[int]] = {}
        for k, error in enumerate(errors):
            if isinstance(error, WeightError):
                self._weights.setdefault(error.initializer, []).append(k)
            else:
                self._tensors.setdefault(error.tensor, []).append(k)
        self._errors = errors
        self._sessions = [network.session(segment) for segment in network.segments]
        self._disturbed: dict[tuple[int, int], Session] = {}

    def outputs(self, feeds: Mapping[str, np.ndarray]) -> dict[str, _Copies]:
        """Outputs of the network for one batch: by name, then by number of the error, -1 being the clean one.

        An error that does not reach an output has no copy of it.
        """
        live: dict[str, _Copies] = {name: {_CLEAN: values} for name, values in feeds.items()}
        for name in feeds:
            self._start(live[name], name)
        kept = {name: live[name] for name in self._network.outputs if name in live}
        for position, segment in enumerate(self._network.segments):
            self._run.check()
            made = self._pass(position, segment, live)
            for name, copies in made.items():
                self._start(copies, name)
                if name in self._network.outputs:
                    kept[name] = copies
            live.update(made)
            for name in segment.reads:
                if self._network.last_reader[name] == position:
                    live.pop(name, None)
        return kept

    def _start(self, copies: _Copies, tensor: str) -> None:
        """Let the errors of ``tensor`` start."""
        for k in self._tensors.get(tensor, ()):
            error = self._errors[k]
            if isinstance(error, ActivationError):
                copies[k] = error.disturb(copies[_CLEAN])

    def _pass(self, position: int, segment: Segment, live: Mapping[str, _Copies]) -> dict[str, _Copies]:
        """What the segment makes of every copy that reaches it."""
        own = [k for name in segment.constants for k in self._weights.get(name, ())]
        reaching = sorted({k for name in segment.reads for k in live[name]} - set(own))
        made: dict[str, _Copies] = {name: {} for name in segment.makes}
        for part in self._parts(segment, live, reaching or [_CLEAN]):
            results = self._run_stacked(self._sessions[position], segment, live, part)
            for name, copies in results.items():
                made[name].update(copies)
        for k in own:
            session = self._disturbed.get((position, k)) or self._disturbed_session(position, segment, k)
            for name, copies in self._run_stacked(session, segment, live, [k]).items():
                made[name].update(copies)
        return made

    def _disturbed_session(self, position: int, segment: Segment, k: int) -> Session:
        error = self._errors[k]
        if not isinstance(error, WeightError):
            raise TypeError("only weights have sessions of their own")
        session = self._network.session(segment, {error.initializer: error.values})
        self._disturbed[position, k] = session
        return session

    def _parts(self, segment: Segment, live: Mapping[str, _Copies], ids: list[int]) -> Iterator[list[int]]:
        if not self._stackable:
            yield from ([k] for k in ids)
            return
        elements = sum(live[name][_CLEAN].size for name in segment.reads)
        most = max(1, _MOST_ELEMENTS // max(elements, 1))
        for first in range(0, len(ids), most):
            yield ids[first : first + most]

    @staticmethod
    def _run_stacked(
        session: Session, segment: Segment, live: Mapping[str, _Copies], ids: list[int]
    ) -> dict[str, _Copies]:
        feeds = {}
        for name in segment.reads:
            copies = live[name]
            arrays = [copies.get(k, copies[_CLEAN]) for k in ids]
            feeds[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        results = session.run(feeds, list(segment.makes))
        return {
            name: dict(zip(ids, np.split(values, len(ids)) if len(ids) > 1 else [values], strict=True))
            for name, values in zip(segment.makes, results, strict=True)
        }
