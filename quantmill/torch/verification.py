"""Does the exported model compute what the module computes? Told by running both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from quantmill.torch.errors import ExportMismatchError
from service.cores import available_cores
from worker.quantizer.evaluation.metrics.distances import Distance
from worker.quantizer.runtime.session import Session

# Rounding of float32 in another order leaves 100 dB and more, float16 about 60.
LEAST_SQNR_DB = 60.0
_LEAST_HALF_SQNR_DB = 35.0
# Around an exact zero there is no signal to compare with.
_ROUNDING = 1e-6


def threads_here() -> int:
    """CPU threads that this process may use."""
    return available_cores()


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values on the CPU, C order; bfloat16 as float32.

    Raises:
        TypeError: numpy has no such type.
    """
    held = tensor.detach().cpu()
    if held.dtype == torch.bfloat16:
        held = held.float()
    return np.ascontiguousarray(held.resolve_conj().resolve_neg().numpy())


def compare(
    session: Session, inputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], what: str
) -> None:
    """Run the exported model on ``inputs`` and hold its outputs against the module's.

    Args:
        session: of the exported model; its outputs stand in the order of ``expected``.
        inputs: by name.
        expected: what the module returned, by name.
        what: the inputs in words: "the example inputs".

    Raises:
        ExportMismatchError: an output has another shape, or is too far away; names it and the distance.
    """
    results = session.run({name: to_numpy(value) for name, value in inputs.items()})
    for (name, tensor), got in zip(expected.items(), results, strict=True):
        wanted = to_numpy(tensor)
        if wanted.shape != got.shape:
            raise _mismatch(name, what, f"its shape is {list(got.shape)}, the module's {list(wanted.shape)}")
        _compare_values(name, wanted, np.asarray(got), tensor.dtype, what)


def _compare_values(name: str, wanted: np.ndarray, got: np.ndarray, dtype: torch.dtype, what: str) -> None:
    if wanted.dtype.kind != "f":
        different = int(np.count_nonzero(wanted != got))
        if different:
            raise _mismatch(name, what, f"{different} of {wanted.size} values differ")
        return
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], got[~finite].astype(wanted.dtype), equal_nan=True):
        raise _mismatch(name, what, "NaN and Inf are in other places")
    distance = Distance()
    distance.update(wanted[finite], got[finite])
    least = LEAST_SQNR_DB if dtype in (torch.float32, torch.float64) else _LEAST_HALF_SQNR_DB
    sqnr_db = distance.sqnr_db
    apart = np.abs(wanted[finite].astype(np.float64) - got[finite].astype(np.float64))
    farthest = float(apart.max(initial=0.0))
    if sqnr_db is None or sqnr_db >= least or farthest <= _ROUNDING:
        return
    raise _mismatch(
        name, what, f"{sqnr_db:.1f} dB between them, at most {farthest:.3g} apart", sqnr_db=sqnr_db, farthest=farthest
    )


def _mismatch(
    name: str, what: str, how: str, sqnr_db: float | None = None, farthest: float | None = None
) -> ExportMismatchError:
    return ExportMismatchError(
        f"output {name!r} of the exported model differs from the module's on {what}: {how}",
        hint="A module whose result depends on random numbers, on state that it keeps between calls, or on values that "
        "Python reads while it is traced has no ONNX form: take these out of forward.",
        output=name,
        sqnr_db=sqnr_db,
        farthest=farthest,
    )
