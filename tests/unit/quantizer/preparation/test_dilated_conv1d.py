"""A dilated Conv1D as TensorFlow writes it: positions become samples, an undilated Conv, samples become positions.

What the graph computes is held against a dilated convolution written out in numpy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.quantizer.preparation.preparing import same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, quantize_file, run_onnx, sqnr_db

DILATION, LENGTH, TAPS = 2, 12, 3
WEIGHTS = {
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
CONV = (
    "e = Unsqueeze(s, one) p = Transpose<perm=[0,3,1,2]>(e) [conv] c = Conv(p, w) "
    "t = Transpose<perm=[0,2,3,1]>(c) q = Squeeze(t, one) "
)
INTO = "f = Pad(x, pads, none) r = Reshape(f, apart) u = Transpose<perm=[2,0,1,3]>(r) s = Reshape(u, samples) "
OUT = "h = Reshape({0}, back) v = Transpose<perm=[1,2,0,3]>(h) {1} = Reshape(v, positions) "
CHAINS = {
    "bias and activation behind all": f"{INTO} {CONV} {OUT.format('q', 'm')} a = Add(m, b) y = Relu(a)",
    "bias and activation within": f"{INTO} {CONV} a = Add(q, b) k = Relu(a) {OUT.format('k', 'y')}",
    "bias within, activation behind": f"{INTO} {CONV} a = Add(q, b) {OUT.format('a', 'm')} y = Relu(m)",
    "as many zeros on either side": (
        "f = Pad(x, around, none) r = Reshape(f, apart_more) u = Transpose<perm=[2,0,1,3]>(r) "
        f"s = Reshape(u, samples_more) {CONV} h = Reshape(q, back_more) v = Transpose<perm=[1,2,0,3]>(h) "
        f"l = Reshape(v, positions_more) m = Slice(l, p0, p{LENGTH}, one) a = Add(m, b) y = Relu(a)"
    ),
}


def text(body: str) -> str:
    return f"(float[N,{LENGTH},4] x) => (float[N,{LENGTH},6] y) {{ {body} }}"


def dilated(chain: str, x: np.ndarray) -> np.ndarray:
    """Relu of the convolution, [samples, positions, channels]."""
    zeros = DILATION * (TAPS - 1)
    padded = np.pad(x, ((0, 0), (zeros // 2, zeros // 2) if "either side" in chain else (zeros, 0), (0, 0)))
    made = sum(padded[:, DILATION * k : DILATION * k + LENGTH] @ WEIGHTS["w"][:, :, 0, k].T for k in range(TAPS))
    return np.maximum(np.asarray(made) + WEIGHTS["b"], 0.0)


@pytest.mark.parametrize("chain", CHAINS)
def test_it_is_prepared_and_quantized_with_the_same_results(chain: str, tmp_path: Path) -> None:
    """Batches of several samples, the last of which is not full: inside, a batch has twice as many rows."""
    model, x = make_model(text(CHAINS[chain]), WEIGHTS), normal(37, LENGTH, 4, seed=3)
    expected = dilated(chain, x)
    for samples in (1, 3):
        np.testing.assert_allclose(run_onnx(model, {"x": x[:samples]})["y"], expected[:samples], rtol=0, atol=1e-5)
        assert "Conv" in op_types(same(model, {"x": x[:samples]})[1])
    result = quantize_file(tmp_path, model, {"x": x})
    assert sqnr_db(expected.astype(np.float32), run_onnx(result.model, {"x": x})["y"]) > 30.0
    (layer,) = [layer for layer in result.report.layers if layer.name == "conv"]
    assert layer.reason_code is None and layer.sqnr_db is not None and layer.sqnr_db > 30.0
