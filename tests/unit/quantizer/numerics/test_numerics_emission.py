"""The ONNX form of activations, run by onnxruntime, against ``fake`` bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.contracts.dtypes import BLOCK_DTYPES, NUMBER_TYPES
from service.contracts.errors import EngineError
from tests.support.each import each
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.quantizer.numerics.forms import (
    ALL,
    FLOAT8,
    NEWEST_OPSET,
    SCALE,
    activation_model,
    expected,
    finite,
    run,
    usual,
    wild,
)
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.graph.values import Names
from worker.quantizer.numerics.blocks import BlockGrid
from worker.quantizer.numerics.emission import activation_nodes, add_functions
from worker.quantizer.numerics.functions import DOMAIN
from worker.quantizer.numerics.minifloat import FLOATS


@pytest.mark.parametrize("dtype", ALL)
@given(values=hnp.arrays(np.float32, (2, 35, 3), elements=st.one_of(usual, finite)))
def test_activations_are_fake_bit_for_bit(dtype: str, values: np.ndarray) -> None:
    np.testing.assert_array_equal(run(dtype, 1, values), expected(dtype, values, 1))


@each("optimized", [True, False])
@each("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("dtype", ALL)
def test_every_axis_with_and_without_the_runtimes_optimizations(dtype: str, axis: int, optimized: bool) -> None:
    for values in (normal(33, 35, 37, seed=1), wild((33, 35, 37), 2)):
        np.testing.assert_array_equal(run(dtype, axis, values, optimized=optimized), expected(dtype, values, axis))


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
@each("length", [1, 3, 8, 16, 31, 32, 33, 64])
def test_a_length_known_in_advance_changes_nothing(dtype: str, length: int) -> None:
    values = wild((5, length, 3), 3)
    known = run(dtype, 1, values, shape=("N", length, "M"))
    np.testing.assert_array_equal(known, run(dtype, 1, values))
    np.testing.assert_array_equal(known, expected(dtype, values, 1))


@pytest.mark.parametrize("dtype", ALL)
@each("shape", [(40,), (2, 3, 40, 2, 2), (1, 1), (0, 40)])
def test_any_rank_and_an_empty_batch(dtype: str, shape: tuple[int, ...]) -> None:
    axis = len(shape) // 2
    values = wild(shape, 4)
    np.testing.assert_array_equal(run(dtype, axis, values), expected(dtype, values, axis))


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
def test_the_exponent_is_exact_at_and_around_every_power_of_two(dtype: str) -> None:
    powers = np.exp2(np.arange(-149.0, 128.0)).astype(np.float32)
    peaks = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
    values = peaks[:, None] * np.linspace(-0.99, 1, 32, dtype=np.float32)
    np.testing.assert_array_equal(run(dtype, 1, values), expected(dtype, values, 1))


@pytest.mark.parametrize("dtype", ALL)
def test_the_lowest_opset_is_enough_and_the_one_below_is_refused(dtype: str) -> None:
    opset = NUMBER_TYPES[dtype].opset
    values = normal(3, 40, seed=5)
    np.testing.assert_array_equal(run(dtype, 1, values, opset=opset), expected(dtype, values, 1))
    if dtype not in ("float16", "bfloat16"):
        with pytest.raises(EngineError, match=f"need opset {opset}"):
            activation_model(dtype, 1, ("N", 40), opset - 1)


@pytest.mark.parametrize("dtype", ALL)
def test_only_standard_operators(dtype: str) -> None:
    model = activation_model(dtype, 1, ("N", "C"), NEWEST_OPSET)
    functions = {(function.domain, function.name) for function in model.functions}
    assert {node.domain for function in model.functions for node in function.node} <= {""}
    for node in model.graph.node:
        assert node.domain == "" or (node.domain, node.op_type) in functions
    assert len(functions) == (0 if dtype in ("float16", "bfloat16") else 1)


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
def test_nan_and_infinity_do_not_come_out_as_numbers(dtype: str) -> None:
    values = normal(2, 40, seed=6)
    values[0, 3], values[1, 35] = np.nan, np.inf
    found = run(dtype, 1, values)
    assert np.isnan(found[0, 3])
    assert np.isnan(found[1, 35])


FLUSHING = """
import sys
import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.set_denormal_as_zero", "1")
values = np.load(sys.argv[1])
for path in sys.argv[2:]:
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    np.save(path + ".npy", session.run(None, {"x": values})[0])
"""


def test_blocks_of_zeros_stay_zero_where_the_runtime_flushes_subnormals(tmp_path: Path) -> None:
    """A scale as small as the formats' smallest would be flushed to 0, and 0 / 0 is NaN.

    The first session of a process decides for its thread, hence another process.
    """
    values = np.concatenate([np.zeros((2, 40), np.float32), normal(2, 40, seed=14)])
    np.save(tmp_path / "x.npy", values)
    for dtype in BLOCK_DTYPES:
        onnx.save(activation_model(dtype, 1, ("N", "C"), NEWEST_OPSET), tmp_path / dtype)
    paths = [str(tmp_path / dtype) for dtype in BLOCK_DTYPES]
    subprocess.run(
        [sys.executable, "-c", FLUSHING, str(tmp_path / "x.npy"), *paths], check=True, timeout=PATIENCE_SECONDS
    )
    for dtype in BLOCK_DTYPES:
        np.testing.assert_array_equal(np.load(tmp_path / f"{dtype}.npy"), expected(dtype, values, 1), err_msg=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_saturate(dtype: str) -> None:
    values = np.array([[1e30, -3.4e38, 1.5, np.finfo(np.float32).max]], np.float32)
    held = run_onnx(activation_model(dtype, 1, ("N", 4), 17), {"x": values})["y"]
    np.testing.assert_array_equal(held, FLOATS[dtype].fake(values))
    assert np.isfinite(held).all()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_what_quantize_linear_and_dequantize_linear_do(dtype: str) -> None:
    values = normal(64, 64, seed=7, scale=9.0)
    zero = onnx.helper.make_tensor("z", getattr(onnx.TensorProto, dtype.replace("_", "").upper()), [], [0.0])
    model = make_model(
        "(float[N,M] x) => (float[N,M] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
        {"s": SCALE},
        opset=19,
        ir_version=9,
    )
    model.graph.initializer.append(zero)
    np.testing.assert_array_equal(run(dtype, 1, values), run_onnx(model, {"x": values}, optimized=False)["y"])


def test_functions_are_added_once_and_shared() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 40]))
    model = ir.Model(ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="g"), ir_version=10)
    names = Names(model.graph)
    first, second = (activation_nodes(names, x, BlockGrid("bfp16", 1), 21) for _ in range(2))
    add_functions(model, first.functions)
    add_functions(model, second.functions)
    assert len(model.functions) == 1
    assert model.graph.opset_imports[DOMAIN] == 1
    made = [part.output.name for part in (first, second)]
    assert len(set(made)) == 2
