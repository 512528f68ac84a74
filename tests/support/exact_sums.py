"""onnxruntime with exact sums of 8-bit products on every CPU, so that tests of numerics hold on all."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import pytest

from worker.quantizer.runtime.host import saturates_pairs

_SESSION = ort.InferenceSession
_EXACT = "session.x64quantprecision"


def make_sums_exact(patch: pytest.MonkeyPatch) -> None:
    """Let sessions compute as on a CPU with VNNI; without it x86 saturates sums of two products."""
    if saturates_pairs():
        patch.setattr(ort, "InferenceSession", _exact)


def make_sums_as_here(patch: pytest.MonkeyPatch) -> None:
    """Let sessions compute as this CPU does, where sums were made exact."""
    patch.setattr(ort, "InferenceSession", _SESSION)


def _exact(model: Any, sess_options: ort.SessionOptions | None = None, **more: Any) -> ort.InferenceSession:
    options = ort.SessionOptions() if sess_options is None else sess_options
    options.add_session_config_entry(_EXACT, "1")
    try:
        return _SESSION(model, options, **more)
    except Exception as error:
        # onnxruntime 1.31 cannot do it where two nodes share a weight, or a body holds one: then every node as it is.
        if "AddInitializer" not in str(error):
            raise
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _SESSION(model, options, **more)
