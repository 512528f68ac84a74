"""onnxruntime's operators for weights of few bits compute what the standard form computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.toolbox import make_model, write_npz
from worker.quantizer.graph import sizes
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
