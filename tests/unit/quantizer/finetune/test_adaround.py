"""AdaRound from second moments, as a step on small networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts import efforts
from service.contracts.algorithms import AdaRound
from service.contracts.errors import CanceledError
from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import config, run_onnx, sqnr_db
from worker.quantizer.finetune.moments import solver as moments_solver
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import SilentRun

W4 = {"dtype": "int4", "granularity": "per_tensor"}
KINDS: dict[str, dict[str, Any]] = {
    "int8 per tensor": {"weight": {"granularity": "per_tensor"}},
    "int8 per channel": {"weight": {"granularity": "per_channel"}},
    "int4 per tensor": {"weight": W4},
    "int4 per channel": {"weight": {"dtype": "int4", "granularity": "per_channel"}},
    "int16 weights": {"weight": {"dtype": "int16"}},
    "power of two": {"preset": "xint8", "target": "onnxruntime_cpu", "bias": {"dtype": "int8"}},
    "uint8 weights": {"weight": {"dtype": "uint8", "symmetric": False}},
}


def rounded(
    settings: dict[str, Any] | None = None,
    *,
    store: CheckpointStore | None = None,
    run: SilentRun | None = None,
    **options: Any,
) -> tuple[Draft, Change]:
    draft, toolkit = toolkit_for(
        chain_of_convolutions(3), config(**(settings or {"weight": W4})), checkpoint=store, run=run
    )
    return draft, FinetuneStep(AdaRound(**options)).apply(draft, toolkit)


def output_sqnr(draft: Draft) -> float:
    feeds = {"x": samples()["x"]}
    return sqnr_db(run_onnx(chain_of_convolutions(3), feeds)["y"], run_onnx(draft.emitted_bytes(), feeds)["y"])


def integers(plan: QuantizationPlan) -> dict[str, np.ndarray]:
    return {name: weight.integers for name, weight in plan.weights.items() if weight.integers is not None}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_layers_come_nearer_and_grids_stay(kind: str) -> None:
    draft, change = rounded(KINDS[kind], unrestricted=False)
    assert change.errors
    assert all(after <= before for before, after in change.errors.values())
    assert change.draft is not None and change.nodes
    for name, weight in change.draft.plan.weights.items():
        before, grid = draft.plan.weights[name].quantization, weight.quantization
        np.testing.assert_array_equal(grid.scale, before.scale)
        np.testing.assert_array_equal(grid.zero_point, before.zero_point)
        low, high = grid.limits
        assert low <= weight.integers.min() and weight.integers.max() <= high
        # up or down from the float weight, no further
        exact = draft.graph.initializers[name].const_value.numpy() / grid.spread(grid.scale, weight.integers.shape)
        moved = np.abs(weight.integers.astype(np.float64) - grid.spread(grid.zero_point, exact.shape) - exact)
        inside = (exact > low) & (exact < high)
        assert (moved[inside] < 1.0 + 1e-3).all()


def test_four_bits_gain_much_at_the_output() -> None:
    draft, change = rounded()
    assert change.draft is not None
    assert output_sqnr(change.draft) > output_sqnr(draft) + 3.0


def test_options_have_their_effect() -> None:
    draft, plain = rounded()
    assert plain.draft is not None
    base = integers(plain.draft.plan)

    def differs(**options: Any) -> bool:
        _, change = rounded(**options)
        assert change.draft is not None
        found = integers(change.draft.plan)
        return any(not np.array_equal(found[name], base[name]) for name in base)

    assert not differs()  # the same seed, the same integers
    assert differs(data_size=4)
    assert differs(unrestricted=False)
    _, fixed = rounded(update_bias=False)
    assert fixed.draft is not None
    for name, bias in fixed.draft.plan.biases.items():
        np.testing.assert_array_equal(bias.integers, draft.plan.biases[name].integers)
    _, dense = rounded(target_op_type=["MatMul"])
    assert set(dense.nodes) <= {"dense"}
    _, refit = rounded(scale_refit=True)
    assert refit.draft is not None
    moved = [
        not np.array_equal(weight.quantization.scale, draft.plan.weights[name].quantization.scale)
        for name, weight in refit.draft.plan.weights.items()
    ]
    assert any(moved)
    assert output_sqnr(refit.draft) > output_sqnr(draft)


def test_selective_update_keeps_what_helps_the_network() -> None:
    draft, change = rounded(selective_update=True)
    assert change.draft is not None
    assert output_sqnr(change.draft) >= output_sqnr(draft)


def test_memory_levels_give_the_same_integers() -> None:
    found = []
    for level in (0, 1, 2):
        _, change = rounded(mem_opt_level=level)
        assert change.draft is not None
        found.append(integers(change.draft.plan))
    for other in found[1:]:
        for name, values in found[0].items():
            np.testing.assert_array_equal(values, other[name])


def test_a_run_that_was_broken_off_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    class Canceling(SilentRun):
        def __init__(self) -> None:
            self.at = 0

        def progress(self, stage: str, done: int = 0, *_args: Any, **_kwargs: Any) -> None:
            if stage == "adaround":
                self.at = done

        def check(self) -> None:
            if self.at >= 2:
                raise CanceledError("stop")

    _, whole = rounded()
    with pytest.raises(CanceledError):
        rounded(store=CheckpointStore(tmp_path), run=Canceling())
    solved: list[str] = []
    original = moments_solver.sample_patches

    def counted(visit: Any, *args: Any, **options: Any) -> Any:
        solved.append(visit.name)
        return original(visit, *args, **options)

    monkeypatch.setattr(moments_solver, "sample_patches", counted)
    _, resumed = rounded(store=CheckpointStore(tmp_path))
    assert solved == ["conv2", "dense"]
    assert "2 taken over" in resumed.summary
    assert whole.draft is not None and resumed.draft is not None
    assert resumed.draft.emitted_bytes() == whole.draft.emitted_bytes()


def test_the_seed_decides_which_patches_are_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(efforts, "_CHEAP_ELEMENTS", 0)
    monkeypatch.setattr(efforts, "_FEWEST_PATCHES", 40)
    found = []
    for seed in (1, 1, 2):
        _, change = rounded(fixed_seed=seed)
        assert change.draft is not None
        found.append(change.draft.emitted_bytes())
    assert found[0] == found[1] != found[2]
