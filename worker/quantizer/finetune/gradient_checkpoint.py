"""A solved unit as bytes, for a checkpoint: plain arrays, no pickles."""

from __future__ import annotations

import io
import json

import numpy as np

from worker.quantizer.finetune.gradient import Solved

_FACTS = "facts"
_KINDS = ("integers", "values", "scales")


def to_bytes(solved: Solved, *, kept: bool) -> bytes:
    """An .npz archive; ``kept`` says whether what was found went into the plan."""
    arrays = {f"{kind}/{name}": array for kind in _KINDS for name, array in getattr(solved, kind).items()}
    facts = {
        "error_before": solved.error_before,
        "error_after": solved.error_after,
        "iterations": solved.iterations,
        "seconds": solved.seconds,
        "kept": kept,
        "names": list(arrays),
    }
    numbered = {f"array{k}": array for k, array in enumerate(arrays.values())}
    file = io.BytesIO()
    np.savez(file, **{_FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}, **numbered)  # type: ignore[arg-type]
    return file.getvalue()


def from_bytes(data: bytes) -> tuple[Solved, bool]:
    """What ``to_bytes`` was given."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        facts = json.loads(archive[_FACTS].tobytes())
        found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in _KINDS}
        for k, full in enumerate(facts["names"]):
            kind, _, name = full.partition("/")
            found[kind][name] = archive[f"array{k}"]
    solved = Solved(
        found["integers"],
        found["values"],
        found["scales"],
        facts["error_before"],
        facts["error_after"],
        facts["iterations"],
        facts["seconds"],
    )
    return solved, bool(facts["kept"])
