"""onnxruntime with exact sums of 8-bit products on every CPU, so that tests of numerics hold on all."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from worker.quantizer.runtime.cpu import saturates_pairs

PLAIN = ort.SessionOptions


def make_sums_exact(patch: pytest.MonkeyPatch) -> None:
    """Let sessions made with options compute as on a CPU with VNNI; without it x86 saturates sums of two products."""
    if not saturates_pairs():
        return

    def exact() -> ort.SessionOptions:
        options = PLAIN()
        options.add_session_config_entry("session.x64quantprecision", "1")
        return options

    patch.setattr(ort, "SessionOptions", exact)


def leave_sums_alone(patch: pytest.MonkeyPatch) -> None:
    """Undo it: with exact sums onnxruntime 1.31 refuses models whose bodies hold integer weights."""
    patch.setattr(ort, "SessionOptions", PLAIN)
