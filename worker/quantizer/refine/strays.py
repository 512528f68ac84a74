"""Whether preparation has left alone what the model computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.costs import spread
from service.contracts.errors import UnsupportedModelError
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import Twins, side_by_side
from worker.quantizer.refine.draft import Case
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session, is_large

# float32 rounding leaves 100 dB and more; a float16 model that is widened leaves about 60.
_PREPARED_SQNR_DB = 40.0
# Other samples may take other branches, and reach other limits.
_SAMPLES, _SAMPLES_OF_BRANCHES = 4, 16
# Of an output's integers: rounding may turn one that is chosen among others by a hair's breadth.
_OTHER_INTEGERS = 0.001


def strays(prepared: ir.Model, case: Case, services: Services) -> dict[str, str]:
    """Outputs of a prepared model that are not those of the float model on some calibration samples, and how they are.

    Compared are types, shapes, where values are not finite, the error of those that are, and integers. What the float
    model itself gives otherwise without the runtime's optimizations says nothing.

    Raises:
        UnsupportedModelError: the model gives other outputs each time that it runs.
    """
    session = Session(prepared, threads=services.threads, what="prepared model", optimized=not is_large(prepared))
    branches = any(True for _ in prepared.graph.subgraphs())
    samples = _SAMPLES_OF_BRANCHES if branches else _SAMPLES
    found = _differing(session, case, services, samples)
    if found:
        for name, how in _differing(case.float_session, case, services, samples).items():
            raise UnsupportedModelError(
                f"output {name!r} of the model is another each time that it runs on the same data ({how})",
                hint="Export the model for inference: without Dropout in training mode, and without random numbers.",
                output=name,
            )
    return found


def _differing(session: Session, case: Case, services: Services, samples: int) -> dict[str, str]:
    """How outputs of ``session`` differ from those of the float model, by name."""
    distances, found = Distances(), dict[str, str]()
    numbers = spread(case.calibration_samples, samples)
    expected = case.expected_outputs(services.run, batch_size=1, samples=numbers)
    for twins in side_by_side(session, expected, services.run):
        finite = []
        for name, one, other in _arrays(twins):
            how = _unlike(one, other)
            if how is not None:
                found.setdefault(name, how)
            elif one.dtype.kind == "f" and one.shape == other.shape:
                both = np.isfinite(one) & np.isfinite(other)
                finite.append((name, np.where(both, one, 0), np.where(both, other, 0)))
        distances.update(finite)
    figures = {name: distance.sqnr_db for name, distance in distances.of.items()}
    far = {name: f"{db:.1f} dB" for name, db in figures.items() if db is not None and db < _PREPARED_SQNR_DB}
    return {**far, **found}


def _arrays(twins: Twins) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for (name, one), other in zip(twins.expected.items(), twins.got.values(), strict=True):
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            same = one.shape == other.shape
            yield name, *((twins.batch.cut(one), twins.batch.cut(other)) if same else (one, other))


def _unlike(one: np.ndarray, other: np.ndarray) -> str | None:
    """How an output differs from what it was, its error aside; None if it does not.

    A length may hang on values, which rounding moves; the number of axes does not.
    """
    if one.dtype != other.dtype or one.ndim != other.ndim:
        return f"{other.dtype} {list(other.shape)} in the place of {one.dtype} {list(one.shape)}"
    if one.shape != other.shape:
        return None
    if one.dtype.kind == "f":
        return _odd_elsewhere(one, other)
    share = float((one != other).mean()) if one.size else 0.0
    return f"{share:.1%} of its values are others" if share > _OTHER_INTEGERS else None


def _odd_elsewhere(one: np.ndarray, other: np.ndarray) -> str | None:
    """What is finite in wider types alone may become so; nothing else may cease to be, or become another."""
    words: dict[str, Any] = {"NaN": np.isnan, "Inf": np.isposinf, "-Inf": np.isneginf}
    for word, odd in words.items():
        if (odd(other) & ~odd(one)).any():
            return f"{word} where it was none"
    return None
