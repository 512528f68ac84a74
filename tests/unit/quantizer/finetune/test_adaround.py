"""AdaRound from second moments, as a step on small networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.contracts import efforts
from service.contracts.algorithms import AdaRound
from tests.unit.quantizer.finetune.gradient.gradient_benches import grids_stay, integers
from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import config, run_onnx, sqnr_db
from worker.quantizer.finetune.step import FinetuneStep
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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_layers_come_nearer_and_grids_stay(kind: str) -> None:
    draft, change = rounded(KINDS[kind], unrestricted=False)
    assert change.errors
    assert all(after <= before for before, after in change.errors.values())
    assert change.draft is not None and change.nodes
    grids_stay(draft.plan, change.draft.plan)
    for name, weight in change.draft.plan.weights.items():
        grid = weight.quantization
        low, high = grid.limits
        # up or down from the float weight, no further
        exact = draft.graph.initializers[name].const_value.numpy() / grid.spread(grid.scale, weight.integers.shape)
        moved = np.abs(weight.integers.astype(np.float64) - grid.spread(grid.zero_point, exact.shape) - exact)
        inside = (exact > low) & (exact < high)
        assert (moved[inside] < 1.0 + 1e-3).all()


@pytest.fixture(scope="module")
def plain() -> tuple[Draft, Change]:
    return rounded()


def test_four_bits_gain_much_and_options_have_their_effect(plain: tuple[Draft, Change]) -> None:
    draft, change = plain
    assert output_sqnr(change.draft) > output_sqnr(draft) + 3.0
    base = integers(change.draft.plan)

    def differs(**options: Any) -> bool:
        found = integers(rounded(**options)[1].draft.plan)
        return any(not np.array_equal(found[name], base[name]) for name in base)

    assert not differs()  # the same seed, the same integers
    assert differs(data_size=4)
    assert differs(unrestricted=False)
    assert not differs(mem_opt_level=0) and not differs(mem_opt_level=2)
    _, fixed = rounded(update_bias=False)
    for name, bias in fixed.draft.plan.biases.items():
        np.testing.assert_array_equal(bias.integers, draft.plan.biases[name].integers)
    _, dense = rounded(target_op_type=["MatMul"])
    assert set(dense.nodes) <= {"dense"}
    _, refit = rounded(scale_refit=True)
    assert any(
        not np.array_equal(weight.quantization.scale, draft.plan.weights[name].quantization.scale)
        for name, weight in refit.draft.plan.weights.items()
    )
    assert output_sqnr(refit.draft) > output_sqnr(draft)
    _, selective = rounded(selective_update=True)
    assert selective.draft is not None
    assert output_sqnr(selective.draft) >= output_sqnr(draft)


def test_the_seed_decides_which_patches_are_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(efforts, "_CHEAP_ELEMENTS", 0)
    monkeypatch.setattr(efforts, "_FEWEST_PATCHES", 40)
    found = []
    for seed in (1, 1, 2):
        _, change = rounded(fixed_seed=seed)
        found.append(change.draft.emitted_bytes())
    assert found[0] == found[1] != found[2]
