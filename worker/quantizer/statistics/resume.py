"""A pass over the calibration set that was broken off goes on where it stood; one that was finished is not repeated.

What a pass gives depends on the float network, the data and the observers alone, so that other jobs find it too.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from service.contracts.model import TensorInfo
from worker.quantizer.graph.serialized import model_digest
from worker.quantizer.run.checkpoint import CheckpointStore, Pace
from worker.quantizer.run.identity import content_key
from worker.quantizer.statistics.snapshot import Snapshot, restore

# Saving may take this part of the time of the pass.
_MOST_TIME = 0.02
# What a slow disk writes: before anything was written, nothing else is known.
_BYTES_PER_SECOND = 100e6
# A shorter pass is sooner repeated than looked up.
_FIRST_SECONDS = 1.0


class Stand:
    """Where one pass stands, kept for others.

    Args:
        store: of the run.
        key: of ``pass_key``.
        observers: of the pass, fresh.
        total: samples.
    """

    def __init__(self, store: CheckpointStore, key: str, observers: Sequence[object], total: int) -> None:
        self._store, self._key = store, key
        self._reducers, self._total = observers, total
        self._began = time.monotonic()
        self._pace = Pace(_MOST_TIME, first_seconds=_FIRST_SECONDS)

    def found(self) -> int:
        """Bring the observers to where another pass stood; returns how many samples they have seen by that."""
        return self._store.find_as(self._key, partial(restore, self._reducers)) or 0

    def save(self, done: int) -> None:
        """Keep what the observers have seen, if that is worth the time; the whole pass even if some of it just was.

        Args:
            done: samples, in whole batches.
        """
        began, is_whole = time.monotonic(), done == self._total
        elapsed = began - self._began
        if elapsed < _FIRST_SECONDS or not (is_whole or self._pace.is_due):
            return
        snapshot = Snapshot(self._reducers)
        needed = snapshot.size_bytes / _BYTES_PER_SECOND / _MOST_TIME - elapsed
        if needed > 0:
            self._pace.wait(needed)
            return
        self._store.keep(self._key, snapshot.to_bytes(done), shared=is_whole)
        self._pace.spent(began)


def pass_key(
    origin: Mapping[str, Any],
    model: ir.Model,
    read: Sequence[tuple[str, bool]],
    observers: Sequence[object],
    inputs: Sequence[TensorInfo],
    total: int,
) -> str:
    """The content key of what a pass gives.

    Args:
        origin: see ``Case``.
        model: the float network.
        read: of each observer: the tensor's name, and whether it is pooled.
        observers: fresh.
        inputs: of the model.
        total: samples.
    """
    known = {name: value for name, value in origin.items() if name not in ("evaluation", "graphs", "model")}
    asked = hashlib.sha256(Snapshot(observers).to_bytes(0)).digest()
    shapes = [tensor.model_dump(mode="json") for tensor in inputs]
    tensors = [list(entry) for entry in read]
    return content_key("statistics", known, model_digest(model), tensors, asked, shapes, total)
