"""Values at the ends of float32 and float16: right where they can be held, a typed error where they cannot."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.errors import QuantmillError
from service.contracts.report import Report
from tests.unit.quantizer.extreme_networks import extreme_case
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, run_onnx, sqnr_db

PARTS, PART = 8, 100
FAST = {"advice_seconds": 0, "latency_runs": 1}


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_whatever_values_there_are_a_model_or_a_typed_error_comes_out(tmp_path: Path, part: int) -> None:
    for seed in range(part * PART, part * PART + (PART if part else 20)):
        told, model, feeds, settings = extreme_case(seed)
        try:
            quantize_file(tmp_path, model, feeds, settings)
        except QuantmillError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {told}") from error


def quantized(
    folder: Path, model: onnx.ModelProto, feeds: dict[str, np.ndarray], test: dict[str, np.ndarray], **settings: Any
) -> tuple[float, Report]:
    """SQNR in dB of output y on ``test``, on a plain session."""
    result = quantize_file(folder, model, feeds, config(evaluation=FAST, **settings))
    expected, got = run_onnx(model, test)["y"], run_onnx(result.model, test)["y"]
    assert np.isfinite(got).all()
    return sqnr_db(expected, got.astype(np.float32)), result.report


SQUARES = "s = Mul(x, x) m = ReduceMean<axes=[-1]>(s) e = Add(m, o) "
MUL = "(float[N,8] x) => (float[N,4] y) { a = MatMul(x, w) y = Mul(a, k) }"
FAINT = {
    "root": (SQUARES + "r = Sqrt(e) d = Div(x, r)", 1e-8),
    "reciprocal": (SQUARES + "r = Sqrt(e) i = Reciprocal(r) d = Mul(x, i)", 1e-12),
    "power": (SQUARES + "r = Pow(e, p) d = Mul(x, r)", 1e-20),
    "logarithm": ("s = Abs(x) e = Add(o, s) d = Log(e)", 1e-9),
}


@pytest.mark.parametrize("case", FAINT)
def test_what_guards_a_row_of_zeros_stays_in_float32(tmp_path: Path, case: str) -> None:
    text, floor = FAINT[case]
    weights = {"o": np.float32(floor), "w": normal(8, 4), **({"p": np.float32(-0.5)} if case == "power" else {})}
    model = make_model(f"(float[N,8] x) => (float[N,4] y) {{ {text} y = MatMul(d, w) }}", weights)
    unseen = {"x": np.concatenate([normal(4, 8, seed=4), np.zeros((2, 8), np.float32)])}
    assert quantized(tmp_path, model, {"x": normal(16, 8)}, unseen, preset="float16_model")[0] > 65


@pytest.mark.parametrize(("preset", "least"), [("float16_model", 60), ("int4_weights", 15), ("int8_weights", 35)])
@pytest.mark.parametrize("size", [1e-6, 1e-30])
def test_faint_weights_keep_their_digits(tmp_path: Path, preset: str, least: float, size: float) -> None:
    model = make_model(MUL, {"w": normal(8, 4) * np.float32(size), "k": np.float32(1 / size)})
    assert quantized(tmp_path, model, {"x": normal(16, 8)}, {"x": normal(9, 8, seed=2)}, preset=preset)[0] > least


@pytest.mark.parametrize("epsilon", ["1e-5", "1e-12"])
def test_faint_variances_keep_their_digits(tmp_path: Path, epsilon: str) -> None:
    weights = {"g": np.ones(2), "b": normal(2), "m": np.zeros(2), "v": np.array([1, 1e-8])}
    text = f"r = Relu(x) y = BatchNormalization<epsilon={epsilon}>(r, g, b, m, v)"
    numbers = {name: array.astype(np.float32) for name, array in weights.items()}
    model = make_model(f"(float[N,2,3] x) => (float[N,2,3] y) {{ {text} }}", numbers)
    settings = {"preset": "float16_model", "preparation": {"fold_batch_norm": False}}
    assert quantized(tmp_path, model, {"x": normal(8, 2, 3)}, {"x": normal(9, 2, 3, seed=2)}, **settings)[0] > 60


ORDERS = {"1,0,2": 4, "1,2,0": 2, "0,2,1": 3, "2,1,0": 2, "2,0,1": 2, "1,2,3,0": 2, "1,2,0,3": 5}


@pytest.mark.parametrize("order", ORDERS)
def test_transposes_before_a_product_of_float16_run(tmp_path: Path, order: str) -> None:
    """A plain session dies where onnxruntime merges some of them into the MatMul."""
    rank = len(order.split(","))
    text = f"t = Transpose<perm=[{order}]>(x)"
    if order == "2,0,1":  # twice makes 1,2,0
        text = text.replace("t =", "u =") + text.replace("(x)", "(u)")
    sizes, names = ",".join(map(str, range(2, 2 + rank))), ",".join("ABCD"[:rank])
    text = f"(float[{sizes}] x) => (float[{names}] y) {{ {text} y = MatMul(t, w) }}"
    model, data = make_model(text, {"w": normal(ORDERS[order], 5)}), {"x": normal(*range(2, 2 + rank))}
    assert quantized(tmp_path, model, data, data, preset="float16_model")[0] > 60


SCORES = "(float[N,6,8] x%s) => (float[N,6,8] y) { t = Transpose<perm=[0,2,1]>(x) u = MatMul(x, a) s = MatMul(u, t) "
LAST = " p = Softmax<axis=-1>(m) v = MatMul(p, x) y = MatMul(v, a) }"
ABOVE = np.triu(np.ones((6, 6), bool), 1)
# Constants, and what they do to the scores.
MASKS = {
    "added": ("c", "m = Add(s, c)"),
    "chosen": ("bf", "m = Where(b, f, s)"),
    "fed": ("", "m = Add(s, e)"),
    "made": ("if", "o = Sub(i, e) n = Mul(o, f) m = Add(s, n)"),  # 0 times Inf is no number
}
LOWEST, LEAST = (-1e4, -np.inf), float(np.finfo(np.float32).min)


@pytest.mark.parametrize("settings", [{"preset": "npu_int8"}, {"target": "qnn"}])
@pytest.mark.parametrize(
    ("kind", "lowest"), [*product(("added", "chosen", "fed"), LOWEST), ("made", -1e4), ("fed", LEAST)]
)
def test_masks_take_nothing_from_what_they_leave(tmp_path: Path, kind: str, lowest: float, settings: Any) -> None:
    mask = np.where(ABOVE, np.float32(lowest), np.float32(0))
    numbers = {"c": mask, "b": ABOVE, "f": np.float32(lowest), "i": np.float32(1)}
    names, text = MASKS[kind]
    fed = kind in ("fed", "made")
    model = make_model(
        SCORES % (", float[N,6,6] e" * fed) + text + LAST,
        {"a": normal(8, 8, scale=0.3), **{name: numbers[name] for name in names}},
    )
    feeds = {"x": normal(16, 6, 8)}
    if fed:
        feeds["e"] = np.repeat((mask if kind == "fed" else 1 - ABOVE.astype(np.float32))[None], 16, axis=0)
    assert quantized(tmp_path, model, feeds, feeds, **settings)[0] > 24


@pytest.mark.parametrize("settings", [{"preset": "xint8"}, {"target": "qnn"}])
@pytest.mark.parametrize("lowest", [-1e4, -np.inf])
@pytest.mark.parametrize("pool", ["kernel_shape=[3,3],strides=[2,2]", "kernel_shape=[2,2],strides=[1,1]"])
def test_fillings_before_a_pool_take_nothing(tmp_path: Path, pool: str, lowest: float, settings: Any) -> None:
    text = f"c = Conv(x, w) r = Relu(c) p = Pad(r, g, o) m = MaxPool<{pool}>(p) y = Relu(m)"
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1]) + np.array([0, 0, 1, 1, 0, 0, 1, 1]) * ("[2,2],strides=[1" in pool)
    weights = {"w": normal(3, 3, 3, 3), "g": pads, "o": np.float32(lowest)}
    model = make_model(f"(float[N,3,8,8] x) => (float[N,3,A,B] y) {{ {text} }}", weights)
    data = {"x": normal(8, 3, 8, 8)}
    assert quantized(tmp_path, model, data, data, **settings)[0] > 33


CACHE = (
    "(float[N,2,P,4] c, float[N,2,3,4] x) => (float[N,2,3,4] y, float[N,2,S,4] k) { k = Concat<axis=2>(c, x) "
    "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(x, t) p = Softmax<axis=-1>(s) v = MatMul(p, k) y = MatMul(v, w) }"
)
CHOSEN = (
    "(float[N,6] x) => (float[K,4] z, float[N,4] y) { b = Greater(x, o) i = NonZero(b) n = Slice(i, q, r) "
    "k = Squeeze(n, q) g = Gather<axis=0>(x, k) z = Gemm(g, w) y = Gemm(x, w) }"
)


@pytest.mark.parametrize("preset", ["int8", "xint8", "int8_dynamic", "int8_weights", "float16_model", "mx9"])
def test_what_is_empty_on_all_data_runs(tmp_path: Path, preset: str) -> None:
    cache = {"c": np.zeros((6, 2, 0, 4), np.float32), "x": normal(6, 2, 3, 4)}
    assert quantized(tmp_path, make_model(CACHE, {"w": normal(4, 4)}), cache, cache, preset=preset)[0] > 25
    numbers = {"o": np.float32(1e9), "q": np.array([0]), "r": np.array([1]), "w": normal(6, 4)}
    data = {"x": normal(6, 6)}
    assert quantized(tmp_path, make_model(CHOSEN, numbers), data, data, preset=preset)[0] > 25


@pytest.mark.parametrize("preset", ["int8", "float16_model"])
def test_a_float16_input_goes_through_as_an_output(tmp_path: Path, preset: str) -> None:
    text = "(float16[N,4] x, float16[N,4] z) => (float16[N,3] y, float16[N,4] z, float16[N,4] x) { y = MatMul(x, w) }"
    model = make_model(text, {"w": normal(4, 3).astype(np.float16)})
    feeds = {"x": normal(6, 4).astype(np.float16), "z": normal(6, 4).astype(np.float16)}
    assert quantized(tmp_path, model, feeds, feeds, preset=preset)[0] > 35


LARGE = {
    "constants": ("(float[N,4] x) => (float[N,4] y) { a = Mul(x, k) y = Gemm(a, w) }", {"k": np.full(4, 1e15)}, 1.0),
    "activations": ("(float[N,4] x) => (float[N,4] y) { y = Gemm(x, w) }", {}, 1e36),
    "a channel": ("(float[N,4] x) => (float[N,4] y) { y = Gemm(x, w) }", {}, np.array([1e19, 1, 1, 1])),
}


@pytest.mark.parametrize("algorithm", ["adaround", "bias_correction", "sensitivity"])
@pytest.mark.parametrize("kind", LARGE)
def test_large_values_are_quantized_and_told(tmp_path: Path, kind: str, algorithm: str) -> None:
    text, weights, size = LARGE[kind]
    numbers = {"w": normal(4, 4), **weights}
    model = make_model(text, {name: array.astype(np.float32) for name, array in numbers.items()})
    data = {"x": (normal(32, 4) * size).astype(np.float32)}
    db, report = quantized(tmp_path, model, data, data, algorithms=[{"method": algorithm}])
    assert db > 30 and Report.model_validate_json(report.model_dump_json(by_alias=True)).layers


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint4"])
@pytest.mark.parametrize("scale", ["float32", "power_of_two"])
def test_grids_at_the_end_of_float32_restore_finite_values(dtype: str, scale: str) -> None:
    from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range, integer_limits

    most = np.finfo(np.float32).max
    for low, high in ((-most, most), (0, most), (-most, 0), (-most, most / 3)):
        for symmetric in (False, True):
            ends = np.asarray(low, np.float32), np.asarray(high, np.float32)
            grid = IntegerGrid(dtype, *grid_for_range(*ends, dtype, symmetric=symmetric, scale=scale))
            assert np.isfinite(grid.dequantize(np.array(integer_limits(dtype, symmetric=False)))).all()
