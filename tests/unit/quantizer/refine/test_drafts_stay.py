"""A draft is never changed: whatever is emitted, scored or made of it, its plan and its journal stay as they were."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts.config import parse_config
from tests.unit.quantizer.toolbox import data, network, quantize_file
from worker.quantizer.refine.draft import Draft

ALL = [
    {"method": "smooth_quant", "accept": "always"},
    {"method": "cross_layer_equalization"},
    {"method": "sensitivity"},
    {
        "method": "mixed_precision",
        "combination": "A16W16_A8W8",
        "goal": {"kind": "distance", "metric": "sqnr", "limit": 20},
    },
    {"method": "bias_correction", "mode": "full", "accept": "always"},
    {"method": "adaround", "solver": "gram", "selective_update": True},
]
GRADIENTS = [
    {"method": "bias_correction", "mode": "fast", "accept": "always"},
    {"method": "adaquant", "solver": "gradient", "num_iterations": 4, "selective_update": True, "accept": "always"},
]
SEARCH = [
    {
        "method": "autopilot",
        "goal": {"kind": "drop", "metric": "top1", "max_drop": 1.0},
        "budget": {"max_trials": 3},
    },
]


def differences(before: Any, after: Any, where: str) -> list[str]:
    """Where two plans or journals differ, to the last element of an array."""
    if isinstance(before, np.ndarray):
        same = isinstance(after, np.ndarray) and before.dtype == after.dtype and np.array_equal(before, after)
        return [] if same else [where]
    if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
        return [found for key in before for found in differences(before[key], after[key], f"{where}[{key!r}]")]
    if hasattr(before, "__dataclass_fields__") and type(before) is type(after):
        names = before.__dataclass_fields__
        pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
        return [found for name, pair in pairs.items() for found in differences(*pair, f"{where}.{name}")]
    return [] if before == after else [where]


@pytest.mark.parametrize("target", ["onnxruntime_cpu", "amd_npu_cnn"])
@pytest.mark.parametrize("algorithms", [ALL, GRADIENTS, SEARCH], ids=["all", "gradients", "search"])
def test_no_draft_of_a_run_is_changed(
    target: str, algorithms: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Draft, Any]] = []
    construct = Draft.__init__

    def remember(draft: Draft, *args: Any, **settings: Any) -> None:
        construct(draft, *args, **settings)
        made.append((draft, deepcopy((draft.plan, draft.journal))))

    monkeypatch.setattr(Draft, "__init__", remember)
    settings = parse_config({"preset": "plain", "target": target, "algorithms": algorithms})
    result = quantize_file(tmp_path, network(), data(32), settings)
    assert len(result.report.algorithms) == len(algorithms) and len(made) > 2 * len(algorithms)
    changed = [found for draft, (plan, _) in made for found in differences(plan, draft.plan, "plan")]
    changed += [found for draft, (_, journal) in made for found in differences(journal, draft.journal, "journal")]
    assert not changed
