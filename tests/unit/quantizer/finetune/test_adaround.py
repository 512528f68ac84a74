"""AdaRound and AdaQuant from second moments, as steps on small networks; and which layers are solved so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts import costs
from service.contracts.algorithms import AdaQuant, AdaRound
from service.contracts.config import parse_config
from tests.unit.quantizer.finetune.gradient.gradient_benches import grids_stay, integers
from tests.unit.quantizer.search.benches import chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal, run_onnx, sqnr_db
from worker.quantizer.finetune import solvers as moments_solver
from worker.quantizer.finetune.solvers import moments_are_cheaper
from worker.quantizer.finetune.step import TOO_LONG, FinetuneStep
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import StepResult
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import SilentRun

W4 = {"dtype": "int4", "granularity": "per_tensor"}
KINDS: dict[str, dict[str, Any]] = {
    "int8 per tensor": {"weight": {"granularity": "per_tensor"}},
    "int8 per channel": {"weight": {"granularity": "per_channel"}}, "int4 per tensor": {"weight": W4},
    "int4 per channel": {"weight": {"dtype": "int4", "granularity": "per_channel"}},
    "int16 weights": {"weight": {"dtype": "int16"}},
    "power of two": {"preset": "xint8", "target": "onnxruntime_cpu", "bias": {"dtype": "int8"}},
    "uint8 weights": {"weight": {"dtype": "uint8", "symmetric": False}},
}  # fmt: skip


def rounded(
    settings: dict[str, Any] | None = None,
    *,
    store: CheckpointStore | None = None,
    run: SilentRun | None = None,
    **options: Any,
) -> tuple[Draft, StepResult]:
    draft, toolkit = toolkit_for(
        chain_of_convolutions(3), config(**(settings or {"weight": W4})), checkpoint=store, run=run
    )
    return draft, FinetuneStep(AdaRound(**options)).apply(draft, toolkit)


def output_sqnr(draft: Draft) -> float:
    feeds = {"x": samples()["x"]}
    return sqnr_db(run_onnx(chain_of_convolutions(3), feeds)["y"], run_onnx(draft.emitted_bytes(), feeds)["y"])


def test_it_is_left_out_where_solving_should_take_too_long() -> None:
    seconds = costs.moments_effort((1, 4, 36), costs.wanted_patches((1, 4, 36))) / costs.MULTIPLICATIONS_PER_SECOND
    _, change = rounded(max_solver_seconds=seconds * 1e-3)
    assert change.draft is None and change.reason is not None and change.reason.code == TOO_LONG.code
    assert "max_solver_seconds" in change.reason.words
    assert rounded(max_solver_seconds=seconds * 1e3)[1].draft is not None


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
def plain() -> tuple[Draft, StepResult]:
    return rounded()


@pytest.mark.slow
def test_four_bits_gain_much_and_options_have_their_effect(plain: tuple[Draft, StepResult]) -> None:
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


@pytest.mark.slow
def test_the_seed_decides_which_patches_are_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(costs, "_CHEAP_ELEMENTS", 0)
    monkeypatch.setattr(costs, "_FEWEST_PATCHES", 40)
    found = []
    for seed in (1, 1, 2):
        _, change = rounded(fixed_seed=seed)
        found.append(change.draft.emitted_bytes())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("shape", "patches", "positions", "cheaper"),
    [
        ((1, 512, 4608), 7_812, 49, True),  # a wide 3x3 Conv
        ((512, 1, 9), 100_000, 196, True),  # depthwise
        ((1, 1000, 1024), 500, 1, True),  # a classifier, from few samples
        ((1, 4096, 25_088), 500, 1, False),  # the first dense layer of a VGG: 2.5 GB of moments
        ((1, 16, 12_000), 100_000, 1, False),  # many inputs for few outputs
    ],
)
def test_usual_layers_are_for_second_moments_and_very_many_inputs_are_not(shape, patches, positions, cheaper) -> None:
    assert moments_are_cheaper(shape, patches, positions, 1000, 8) == cheaper


def test_more_steps_and_more_positions_speak_for_moments() -> None:
    shape = (1, 64, 6000)
    assert [moments_are_cheaper(shape, 64_000, 16, steps, 8) for steps in (10, 100_000)] == [False, True]
    assert [moments_are_cheaper(shape, 64_000, positions, 1000, 8) for positions in (1, 10_000)] == [False, True]


def without_room(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Second moments of 6 * 9 inputs and more find no room; returns the layers that this hits."""
    monkeypatch.setattr(moments_solver, "_MOST_BYTES", 4 * 54 * 54 - 1)
    draft, _ = toolkit_for(chain_of_convolutions(3), config(weight=W4))
    return [
        weight.node
        for weight in draft.plan.weights.values()
        if weight.integers is not None and weight.integers[0].size >= 54
    ]


@pytest.mark.slow
def test_layers_without_room_go_to_the_gradient_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    _, usual = rounded()
    large = without_room(monkeypatch)
    draft, change = rounded(num_iterations=100)
    assert large and set(change.errors) == set(usual.errors) > set(large)
    for name in large:
        before, after = change.errors[name]
        assert after < before
    assert "by gradients" in change.summary and all(name in change.summary for name in large)
    assert "by gradients" not in usual.summary
    assert change.draft is not None
    assert output_sqnr(change.draft) > output_sqnr(draft) + 1


def test_both_solvers_go_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = without_room(monkeypatch)
    store = CheckpointStore(tmp_path)
    found = [rounded(num_iterations=50, store=store)[1] for _ in range(2)]
    assert found[1].draft.emitted_bytes() == found[0].draft.emitted_bytes()
    assert f"{len(found[0].errors)} reused" in found[1].summary and large


def test_adaquant_from_second_moments_is_adaround_without_bounds() -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(3), config(weight=W4))
    change = FinetuneStep(AdaQuant(solver="moments")).apply(draft, toolkit)
    far, near = (rounded(unrestricted=is_far)[1].draft for is_far in (True, False))
    assert change.draft.emitted_bytes() == far.emitted_bytes() != near.emitted_bytes()
    assert all(after <= before for before, after in change.errors.values())
    assert output_sqnr(change.draft) > output_sqnr(draft) + 3
    assert AdaRound().solver == "moments" and AdaQuant().solver == "gradient"


def test_what_may_move_in_adaquant_is_what_was_asked_for() -> None:
    text = "(float[N,3,8,8] x) => (float[N,6,8,8] y) { [conv] c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c) }"
    weight = normal(6, 3, 3, 3, scale=0.3)
    weight[0, 0, 0, 0] = 3.0  # all others would do with a smaller scale
    model = make_model(text, {"w": weight, "b": normal(6, seed=1, scale=0.1)})

    def parameters(**options: Any) -> tuple[np.ndarray, np.ndarray]:
        draft, toolkit = toolkit_for(model, config(weight=W4))
        change = FinetuneStep(AdaQuant(solver="moments", **options)).apply(draft, toolkit)
        bias, grid = change.draft.plan.biases["conv"], change.draft.plan.weights["w"].quantization
        return np.asarray(bias.integers), np.asarray(grid.scale)

    before, _ = toolkit_for(model, config(weight=W4))
    bias, scale = before.plan.biases["conv"].integers, before.plan.weights["w"].quantization.scale
    found = [parameters(), parameters(update_bias=False), parameters(update_scales=True)]
    assert [np.array_equal(one, bias) for one, _ in found[:2]] == [False, True]
    assert [np.array_equal(other, scale) for _, other in found] == [True, True, False]


def test_a_config_may_still_call_the_moments_solver_gram() -> None:
    stored = {"algorithms": [{"method": "adaround", "solver": "gram"}]}
    assert parse_config(stored) == parse_config({"algorithms": [{"method": "adaround", "solver": "moments"}]})
    assert "gram" not in AdaQuant.model_json_schema()["properties"]["solver"]["enum"]
