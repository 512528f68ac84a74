"""Conv1D as TensorFlow writes it, also a dilated one: held against onnxruntime and numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.quantizer.preparation.preparing import same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, plan_for, quantize_file, run_onnx, sqnr_db, step

WEIGHTS = {
    "w": normal(6, 4, 1, 3, scale=0.3), "w2": normal(5, 6, 1, 3, seed=1, scale=0.3), "b": normal(6, seed=2),
    "b_first": normal(6, 1, seed=2), "b2": normal(5, seed=3), "positions": normal(10, 1), "one": np.array([1]),
    "two": np.array([2]), "flat": np.array([0, 6, 10]),
}  # fmt: skip
CONV = "Conv<pads=[0,1,0,1]>"
INTO = "e = Unsqueeze(x, one) p = Transpose<perm=[0,3,1,2]>(e) "
OUT = "t = Transpose<perm=[0,2,3,1]>(c) s = Squeeze(t, one) "
CHAINS = {
    "channels last, as Keras": (
        f"(float[N,10,4] x) => (float[N,10,6] y) {{ {INTO} [conv] c = {CONV}(p, w) {OUT} a = Add(s, b) y = Relu(a) }}"
    ),
    "channels first": (
        f"(float[N,4,10] x) => (float[N,6,10] y) {{ u = Unsqueeze(x, two) [conv] c = {CONV}(u, w) s = Squeeze(c, two) "
        "a = Add(b_first, s) y = Relu(a) }"
    ),
    "transposed behind": (
        f"(float[N,4,10] x) => (float[N,10,6] y) {{ u = Unsqueeze(x, two) [conv] c = {CONV}(u, w) s = Squeeze(c, two) "
        "t = Transpose<perm=[0,2,1]>(s) a = Add(t, b) y = Relu(a) }"
    ),
    "a Reshape": (
        f"(float[2,4,10] x) => (float[2,6,10] y) {{ u = Unsqueeze(x, two) [conv] c = {CONV}(u, w) "
        "s = Reshape(c, flat) a = Add(s, b_first) y = Relu(a) }"
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_bias_and_activation_come_first(name: str) -> None:
    model = make_model(CHAINS[name], WEIGHTS)
    x = normal(2, 10, 4, seed=4) if "N,10,4]" in CHAINS[name] else normal(2, 4, 10, seed=4)
    prepared, proto = same(model, {"x": x})
    types = op_types(proto)
    assert "Add" not in types
    assert types[types.index("Conv") + 1] == "Relu"
    assert step(prepared, "sink_conv1d_squeeze").applied
    _, kept = same(model, {"x": x}, sink_conv1d_squeeze=False)
    assert "Add" in op_types(kept)


def test_two_of_them_make_one_quantized_region() -> None:
    second = "e2 = Unsqueeze(r, one) p2 = Transpose<perm=[0,3,1,2]>(e2) [second] d = Conv(p2, w2) "
    end = "t2 = Transpose<perm=[0,2,3,1]>(d) s2 = Squeeze(t2, one) y = Add(s2, b2)"
    text = f"(float[N,10,4] x) => (float[N,8,5] y) {{ {INTO} [conv] c = {CONV}(p, w) {OUT} a = Add(s, b) r = Relu(a) "
    _, plan = plan_for(make_model(f"{text} {second} {end} }}", WEIGHTS))
    names = [entry.op_type for entry in plan.nodes.values() if not entry.quantized]
    assert set(names) <= {"Unsqueeze", "Transpose"}  # those before the first Conv
    assert len(names) == 2


OTHERS = {
    "positions differ": "y = Add(s, positions)", "read elsewhere": "a = Add(s, b) y = Mul(a, s)",
    "two activations": "y = Add(s, z)",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_come_first_stays(name: str) -> None:
    text = f"(float[N,10,4] x, float[N,10,6] z) => (float[N,10,6] y) {{ {INTO} c = {CONV}(p, w) {OUT} {OTHERS[name]} }}"
    prepared, proto = same(make_model(text, WEIGHTS), {"x": normal(2, 10, 4), "z": normal(2, 10, 6)})
    assert not step(prepared, "sink_conv1d_squeeze").applied
    assert "Add" in op_types(proto)


DILATION, LENGTH, TAPS = 2, 12, 3
DILATED_WEIGHTS = {
    "w": normal(6, 4, 1, TAPS, scale=0.3),
    "b": normal(6, seed=1),
    "pads": np.array([0, 4, 0, 0, 0, 0]),  # causal: four zeros before the first position
    "around": np.array([0, 2, 0, 0, 4, 0]),  # as many on either side, and more, which are cut off again
    "none": np.float32(0),
    "apart": np.array([-1, 8, DILATION, 4]),
    "samples": np.array([-1, 8, 4]),
    "one": np.array([1]),
    "back": np.array([DILATION, -1, 6, 6]),
    "positions": np.array([-1, LENGTH, 6]),
    "apart_more": np.array([-1, 9, DILATION, 4]),
    "samples_more": np.array([-1, 9, 4]),
    "back_more": np.array([DILATION, -1, 7, 6]),
    "positions_more": np.array([-1, LENGTH + 2, 6]),
    **{f"p{n}": np.array([n]) for n in (0, LENGTH)},
}
PRODUCT = (
    "e = Unsqueeze(s, one) p = Transpose<perm=[0,3,1,2]>(e) [conv] c = Conv(p, w) "
    "t = Transpose<perm=[0,2,3,1]>(c) q = Squeeze(t, one) "
)
APART = "f = Pad(x, pads, none) r = Reshape(f, apart) u = Transpose<perm=[2,0,1,3]>(r) s = Reshape(u, samples) "
BACK = "h = Reshape({0}, back) v = Transpose<perm=[1,2,0,3]>(h) {1} = Reshape(v, positions) "
DILATED = {
    "bias and activation behind all": f"{APART} {PRODUCT} {BACK.format('q', 'm')} a = Add(m, b) y = Relu(a)",
    "bias and activation within": f"{APART} {PRODUCT} a = Add(q, b) k = Relu(a) {BACK.format('k', 'y')}",
    "bias within, activation behind": f"{APART} {PRODUCT} a = Add(q, b) {BACK.format('a', 'm')} y = Relu(m)",
    "as many zeros on either side": (
        "f = Pad(x, around, none) r = Reshape(f, apart_more) u = Transpose<perm=[2,0,1,3]>(r) "
        f"s = Reshape(u, samples_more) {PRODUCT} h = Reshape(q, back_more) v = Transpose<perm=[1,2,0,3]>(h) "
        f"l = Reshape(v, positions_more) m = Slice(l, p0, p{LENGTH}, one) a = Add(m, b) y = Relu(a)"
    ),
}


def text(body: str) -> str:
    return f"(float[N,{LENGTH},4] x) => (float[N,{LENGTH},6] y) {{ {body} }}"


def dilated(chain: str, x: np.ndarray) -> np.ndarray:
    """Relu of the convolution, [samples, positions, channels]."""
    zeros = DILATION * (TAPS - 1)
    padded = np.pad(x, ((0, 0), (zeros // 2, zeros // 2) if "either side" in chain else (zeros, 0), (0, 0)))
    made = sum(
        padded[:, DILATION * k : DILATION * k + LENGTH] @ DILATED_WEIGHTS["w"][:, :, 0, k].T for k in range(TAPS)
    )
    return np.maximum(np.asarray(made) + DILATED_WEIGHTS["b"], 0.0)


@pytest.mark.parametrize("chain", DILATED)
def test_it_is_prepared_and_quantized_with_the_same_results(chain: str, tmp_path: Path) -> None:
    """Batches of several samples, the last of which is not full: inside, a batch has twice as many rows."""
    model, x = make_model(text(DILATED[chain]), DILATED_WEIGHTS), normal(37, LENGTH, 4, seed=3)
    expected = dilated(chain, x)
    for samples in (1, 3):
        np.testing.assert_allclose(run_onnx(model, {"x": x[:samples]})["y"], expected[:samples], rtol=0, atol=1e-5)
        assert "Conv" in op_types(same(model, {"x": x[:samples]})[1])
    result = quantize_file(tmp_path, model, {"x": x})
    assert sqnr_db(expected.astype(np.float32), run_onnx(result.model, {"x": x})["y"]) > 30.0
    (layer,) = [layer for layer in result.report.layers if layer.name == "conv"]
    assert layer.reason_code is None and layer.sqnr_db is not None and layer.sqnr_db > 30.0
