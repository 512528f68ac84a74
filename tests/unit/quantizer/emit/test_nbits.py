"""Operators for weights of few bits compute what the standard form computes; what a file need not hold goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from tests.support.encoder import encoder, texts
from tests.unit.quantizer.toolbox import make_model, normal, op_types, run_onnx, write_npz
from worker.quantizer.emit.tidy import tidied
from worker.quantizer.graph import sizes
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun

ROWS, WIDTH, OUT = 50, 96, 40


def language_model() -> onnx.ModelProto:
    """A table, and two products: of a width that blocks divide, and of one that they do not."""
    random = np.random.default_rng(1)
    shapes = {"table": (ROWS, WIDTH), "first": (WIDTH, OUT), "second": (OUT, 7)}
    return make_model(
        "(int64[n, t] ids) => (float[n, t, 7] y) "
        "{ x = Gather(table, ids) h = MatMul(x, first) r = Relu(h) y = MatMul(r, second) }",
        {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
        opset=21,
        ir_version=10,
    )


def weights(dtype: str, **more: Any) -> dict[str, Any]:
    symmetric = not dtype.startswith("u")
    return {"dtype": dtype, "symmetric": symmetric, "granularity": "per_block", "block_size": 32, **more}


IDS = np.random.default_rng(2).integers(0, ROWS, (6, 5))


def quantized(folder: Path, spec: dict[str, Any]) -> tuple[Result, np.ndarray]:
    folder.mkdir(exist_ok=True)
    config = parse_config({"preset": "plain", "mode": "weights_only", "weight": spec})
    onnx.save(language_model(), folder / "model.onnx")
    data = write_npz(folder / "data.npz", ids=IDS)
    found = quantize(folder / "model.onnx", config, data, None, run=SilentRun(), threads=1)
    return found, ort.InferenceSession(found.model).run(None, {"ids": IDS})[0]


@pytest.mark.parametrize(
    ("dtype", "scale"), [("uint4", "float32"), ("int4", "float16"), ("uint8", "float16"), ("int8", "float32")]
)
def test_both_forms_compute_the_same(tmp_path: Path, dtype: str, scale: str) -> None:
    standard, expected = quantized(tmp_path / "standard", weights(dtype, scale=scale))
    # level 1 computes in float32, as the standard form does at the lowest level of optimization
    fused, result = quantized(tmp_path / "fused", weights(dtype, scale=scale, kernel="matmul_nbits", accuracy_level=1))
    graph = onnx.load_from_string(fused.model).graph
    assert [node.op_type for node in graph.node if node.domain == "com.microsoft"] == [
        "GatherBlockQuantized",
        "MatMulNBits",
        "MatMulNBits",
    ]
    assert {node.output[0] for node in graph.node} >= {"x", "h", "r", "y"}
    assert not any(node.domain for node in onnx.load_from_string(standard.model).graph.node)
    np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("mode", "spec", "says"),
    [
        ("weights_only", weights("int4", kernel="matmul_nbits", block_size=24), "blocks of 16, 32, 64"),
        ("weights_only", weights("int8", kernel="matmul_nbits") | {"granularity": "per_channel"}, "4 or 8 bits with"),
        ("weights_only", weights("int16", kernel="matmul_nbits"), "4 or 8 bits with granularity"),
        ("static", weights("int4", kernel="matmul_nbits"), "choose mode weights_only"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(mode: str, spec: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        parse_config({"preset": "plain", "mode": mode, "weight": spec})


@pytest.mark.parametrize("kernel", ["auto", "matmul_nbits"])
def test_the_report_has_figures_of_both_forms(tmp_path: Path, kernel: str) -> None:
    result, after = quantized(tmp_path, weights("int4", kernel=kernel, accuracy_level=4))
    found = result.report.kernels
    assert found is not None and found.products == 2 and found.reason is None
    standard, fused = found.forms
    assert [(form.form, form.accuracy_level) for form in found.forms] == [("standard", None), ("matmul_nbits", 4)]
    assert (standard.emitted, fused.emitted) == (kernel != "matmul_nbits", kernel == "matmul_nbits")
    emitted = fused if fused.emitted else standard
    assert result.report.latency is not None and emitted.ratio == result.report.latency.ratio
    # what is told of the emitted form is what its file gives
    (before,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"ids": IDS})
    sqnr_db = 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum())
    assert emitted.sqnr_db == pytest.approx(sqnr_db, abs=0.1)


@pytest.mark.parametrize(
    ("spec", "code"),
    [(weights("int4"), "too-large-for-both-forms"), ({"dtype": "int8", "granularity": "per_channel"}, None)],
)
def test_forms_are_compared_only_where_there_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], code: str | None
) -> None:
    monkeypatch.setattr(sizes, "PACKED_BYTES", 1000)
    found = quantized(tmp_path, spec)[0].report.kernels
    assert (None if found is None else found.reason_code) == code
    assert found is None or (found.forms == () and "too large" in str(found.reason))


def tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    before = model.SerializeToString()
    held = ir.from_proto(onnx.load_from_string(before))
    found = onnx.load_from_string(to_bytes(tidied(held)))
    onnx.checker.check_model(found)
    assert to_bytes(held) == to_bytes(ir.from_proto(onnx.load_from_string(before)))  # the original stays as it is
    return found


def test_an_encoder_computes_the_same_bits() -> None:
    model = encoder(layers=2, hidden=16, heads=2, tokens=50, positions=12, head="copied")
    for node in model.graph.node:  # each Gelu and Softmax reads constants of its own
        for k, name in enumerate(node.input):
            if name in ("sqrt2", "half", "root", "split"):
                twin = next(tensor for tensor in model.graph.initializer if tensor.name == name)
                copy = model.graph.initializer.add()
                copy.CopyFrom(twin)
                copy.name = node.input[k] = f"{name}_of_{node.name}"
    found, feeds = tidy(model), texts(5, 9, tokens=50)
    for optimized in (True, False):
        before = run_onnx(model, feeds, optimized=optimized)["result"]
        np.testing.assert_array_equal(run_onnx(found, feeds, optimized=optimized)["result"], before)
    # one of each constant is left, and one of both Shape nodes that read the same is
    used = {name for node in found.graph.node for name in node.input}
    assert len([tensor for tensor in found.graph.initializer if tensor.name in used]) == len(found.graph.initializer)
    assert len(found.graph.initializer) < len(model.graph.initializer) - 10
    assert len(found.graph.value_info) == 0


def test_equal_constants_small_and_large_are_held_once() -> None:
    large, small = normal(40, 40), normal(40)
    weights = {"a": large, "b": large.copy(), "c": small, "d": small.copy(), "e": large.T.copy()}
    text = (
        "(float[N,40] x) => (float[N,40] y) { s = MatMul(x, a) t = MatMul(s, b) u = Add(t, c) v = Add(u, d) "
        "y = MatMul(v, e) }"
    )
    model = make_model(text, weights)
    found, feeds = tidy(model), {"x": normal(3, 40, seed=2)}
    assert sorted(list(tensor.dims) for tensor in found.graph.initializer) == [[40], [40, 40], [40, 40]]
    assert len(found.SerializeToString()) < 2 * large.nbytes + 2000
    np.testing.assert_array_equal(run_onnx(found, feeds)["y"], run_onnx(model, feeds)["y"])


def test_constants_that_only_look_alike_are_kept_apart() -> None:
    zeros = np.zeros(4, np.float32)
    weights = {"a": zeros, "b": -zeros, "c": np.zeros(4, np.int32), "d": zeros.reshape(4, 1)}
    text = (
        "(float[1] x) => (float[4] y, float[4] z, int32[4] w, float[4,1] v) "
        "{ y = Div(x, a) z = Div(x, b) w = Identity(c) v = Identity(d) }"
    )
    model = make_model(text, weights)
    before, after = (run_onnx(one, {"x": np.ones(1, np.float32)}) for one in (model, tidy(model)))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert before["y"][0] == np.inf and before["z"][0] == -np.inf


def test_equal_nodes_stand_once_and_outputs_keep_their_names() -> None:
    text = (
        "(float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] s, float[N,4] d) { y = Exp(x) z = Exp(x) "
        "a = Tanh(x) b = Tanh(x) s = Sub(a, b) r = RandomUniformLike(x) q = RandomUniformLike(x) d = Sub(r, q) }"
    )
    model = make_model(text)
    found, feeds = tidy(model), {"x": normal(3, 4)}
    assert op_types(found).count("Tanh") == 1
    assert op_types(found).count("RandomUniformLike") == 2  # what is drawn twice is drawn twice
    made, expected = run_onnx(found, feeds), run_onnx(model, feeds)
    for name in "yzs":
        np.testing.assert_array_equal(made[name], expected[name])
    assert np.abs(made["d"]).min() > 0
