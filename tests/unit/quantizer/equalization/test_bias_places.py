"""Places for corrections: what is made for them computes what it did, and what cannot be made is told."""

from __future__ import annotations

import numpy as np
import pytest

from service.contracts.algorithms import BiasCorrection
from service.contracts.config import QuantizationConfig
from tests.unit.quantizer.equalization.benches import Bench, float_outputs, quantized_outputs, used
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types
from worker.quantizer.equalization.bias_correction.creation import Places, make_places
from worker.quantizer.plan.parameters import Parameters

PLAIN = config(weight={"granularity": "per_tensor"})
NPU = config(preset="xint8", algorithms=[])
WEIGHTS = {
    "w": normal(4, 6, seed=1),
    "w2": normal(6, 6, seed=2),
    "kernel": normal(6, 4, 3, 3, seed=3),
    "line": normal(6, 4, 3, seed=4),
    "cube": normal(6, 4, 1, 1, 1, seed=4),
    "halves": normal(6, 2, 1, 1, seed=4),
    "up": normal(4, 6, 2, 2, seed=4),
    "turned": normal(6, 4, seed=4),
    "b": normal(6, seed=5),
    "one": np.array([0.5], np.float32),
}

CREATED = {
    "bias of a convolution": ("[it] y = Conv(x, kernel)", (8, 4, 5, 5), "bias", ["Conv"]),
    "bias of a padded one": ("[it] y = Conv<pads=[1,1,1,1]>(x, kernel)", (8, 4, 5, 5), "bias", ["Conv"]),
    "bias in one dimension": ("[it] y = Conv(x, line)", (32, 4, 12), "bias", ["Conv"]),
    "bias in three dimensions": ("[it] y = Conv(x, cube)", (32, 4, 3, 3, 3), "bias", ["Conv"]),
    "bias of a grouped one": ("[it] y = Conv<group=2>(x, halves)", (32, 4, 5, 5), "bias", ["Conv"]),
    "bias of a transposed one": ("[it] y = ConvTranspose(x, up)", (8, 4, 5, 5), "bias", ["ConvTranspose"]),
    "bias of a gemm": ("[it] y = Gemm<transB=1>(x, turned)", (64, 4), "bias", ["Gemm"]),
    "gemm": ("[it] y = MatMul(x, w)", (8, 4), "Gemm in place", ["Gemm"]),
    "add": ("[it] y = MatMul(x, w)", (8, 3, 4), "Add", ["MatMul", "Add"]),
    "add in the middle": ("[it] m = MatMul(x, w) y = Softmax(m)", (8, 3, 4), "Add", ["MatMul", "Add", "Softmax"]),
    "term of one value": ("[it] m = MatMul(x, w) y = Add(m, one)", (8, 3, 4), "term", ["MatMul", "Add"]),
}


def places(it: Bench, settings: QuantizationConfig = PLAIN, *, insert_add: bool = True) -> Places:
    return make_places(it.draft, settings, insert_add=insert_add)


def bench(
    body: str, shape: tuple[int, ...], settings: QuantizationConfig = PLAIN, mode: str = "full", outputs: str = "y"
) -> Bench:
    fed, rank = (",".join(["N", *sizes]) for sizes in (map(str, shape[1:]), "abcd"[: len(shape) - 1]))
    made = ", ".join(f"float[{rank}] {name}" for name in outputs)
    model = make_model(f"(float[{fed}] x) => ({made}) {{ {body} }}", used(WEIGHTS, body))
    return Bench(model, {"x": normal(*shape, seed=9) + 1}, BiasCorrection(mode=mode), settings)


@pytest.mark.parametrize("case", CREATED)
def test_a_place_is_made_and_the_network_computes_what_it_did(case: str) -> None:
    body, shape, what, operators = CREATED[case]
    it = bench(body, shape)
    made = places(it)
    assert list(made.found) == ["it"] and not made.left
    assert any(what in kind for kind in made.created)
    assert [node.op_type for node in made.draft.graph] == operators
    np.testing.assert_array_equal(float_outputs(made.draft, it.feeds)["y"], float_outputs(it.draft, it.feeds)["y"])
    np.testing.assert_allclose(
        quantized_outputs(made.draft, it.feeds)["y"], quantized_outputs(it.draft, it.feeds)["y"], rtol=1e-5, atol=1e-5
    )
    assert op_types(it.model) != operators or len(it.draft.plan.biases) < len(made.draft.plan.biases) or what == "term"


@pytest.mark.parametrize("case", CREATED)
@pytest.mark.parametrize("mode", ["fast", "full"])
def test_the_correction_goes_there(case: str, mode: str) -> None:
    body, shape, *_ = CREATED[case]
    it = bench(body, shape, config(weight={"dtype": "int4", "granularity": "per_tensor"}), mode)
    change = it.apply()
    assert change.draft is not None and change.nodes == ("it",)
    before, corrected = (quantized_outputs(draft, it.feeds)["y"] for draft in (it.draft, change.draft))
    if "Softmax" in body:  # the output is not the layer's: its mean says nothing, but it has to have moved
        assert (corrected != before).any()
        return
    expected = float_outputs(it.draft, it.feeds)["y"].astype(np.float64)
    axis = -1 if "MatMul" in body else 1
    rest = tuple(k for k in range(expected.ndim) if k != axis % expected.ndim)

    def error(outputs: np.ndarray) -> float:
        return float(np.abs((outputs - expected).mean(axis=rest)).max())

    assert error(corrected) < 0.5 * error(before)


def test_a_float_bias_that_others_read_is_copied() -> None:
    gpu = config(target="tensorrt", activation={"dtype": "int8", "symmetric": True})
    it = bench("[a] y = Gemm(x, w2, b) s = Sin(x) [c] z = Gemm(s, w2, b)", (16, 6), gpu, outputs="yz")
    made = places(it, gpu)
    assert set(made.found) == {"a", "c"} and "copy of a shared bias" in made.created
    assert len({place.initializer for place in made.found.values()}) == 2
    for name, expected in float_outputs(it.draft, it.feeds).items():
        np.testing.assert_array_equal(float_outputs(made.draft, it.feeds)[name], expected)


def test_a_matmul_that_takes_no_bias_says_so() -> None:
    made = places(bench("[it] y = MatMul(x, w)", (8, 3, 4)), insert_add=False)
    assert not made.found and "insert_add is off" in made.left["it"]
    made = places(bench("[it] m = MatMul(x, w) [next] y = MatMul(m, w2)", (8, 3, 4)))
    assert "goes on as integers" in made.left["it"] and "next" in made.found


@pytest.mark.parametrize("settings", [PLAIN, NPU, config(bias={"dtype": "float32"})], ids=["int32", "int8", "float"])
def test_what_is_put_is_what_is_there(settings: QuantizationConfig) -> None:
    made = places(bench("[it] y = Gemm(x, w, b)", (16, 4), settings), settings)
    place, parameters = made.found["it"], Parameters(made.draft.graph, made.draft.plan.copy())
    before = place.of(parameters)
    np.testing.assert_array_equal(before.unrounded, WEIGHTS["b"])
    np.testing.assert_array_equal(before.original, WEIGHTS["b"])
    values, shift = np.linspace(-3, 3, 6), np.linspace(1, 2, 6)
    place.add(parameters, values, shift)
    after = place.of(parameters)
    step = 0.0 if after.grid is None else float(np.max(after.grid.scale))
    np.testing.assert_allclose(after.present, values + shift, atol=0.51 * step + 1e-6)
    np.testing.assert_allclose(after.unrounded, after.present)
    np.testing.assert_array_equal(after.original, WEIGHTS["b"])


def test_a_quantized_term_is_put_on_a_grid_of_its_own() -> None:
    made = places(bench("[it] m = MatMul(x, w) y = Add(m, b)", (8, 3, 4), NPU), NPU)
    place, parameters = made.found["it"], Parameters(made.draft.graph, made.draft.plan.copy())
    values = 100 * np.linspace(-3, 3, 6)
    place.add(parameters, values, np.zeros(6))
    step = float(place.of(parameters).grid.scale)
    np.testing.assert_allclose(place.of(parameters).present, values, atol=0.51 * step)
    assert step == 2.0 ** np.ceil(np.log2(300 / 127))
