"""The runtime computes what is written; else the node is written otherwise, or the report says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from service.contracts.errors import EngineError
from tests.support.each import each
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types, quantize_file, run_onnx, sqnr_db
from worker.quantizer.emit import between
from worker.quantizer.pipeline import Result
from worker.quantizer.written import program

Case = Callable[..., Result]
# The integer kernel of pools knows no dilations, and divides by other counts.
POOLS = {"refused": "dilations=[2,2]", "apart": "ceil_mode=1, count_include_pad=1, strides=[2,2], pads=[1,1,1,1]"}
FEEDS = {"x": normal(8, 3, 12, 12)}


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Quantizes a model with a pool that nothing keeps apart."""
    monkeypatch.setattr(between, "_is_taken", lambda _: False)

    def quantize(pool: str) -> Result:
        layers = f"c = Conv(x, w) [pool] p = AveragePool<kernel_shape=[3,3], {pool}>(c) d = Conv(p, v) y = Conv(d, v)"
        arrays = {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1)}
        model = make_model(f"(float[N,3,12,12] x) => (float[N,4,A,B] y) {{ {layers} }}", arrays, opset=19)
        # of 7 bits: the model runs in another process, as this CPU computes, which may saturate sums of 8-bit products
        exact, gate = {"reduce_range": True}, {"min_sqnr_db": 1.0}
        settings = config(exclude=[{"node": "pool"}], weight=exact, evaluation={"gate": gate})
        return quantize_file(tmp_path, model, FEEDS, settings)

    return quantize


@each("pool", POOLS.values())
def test_a_node_that_is_computed_otherwise_is_kept_apart(quantized: Case, pool: str) -> None:
    result = quantized(pool)
    emitted, report = onnx.load_from_string(result.model), result.report
    assert "Max" in op_types(emitted)
    assert sqnr_db(run_onnx(emitted, FEEDS, optimized=False)["y"], run_onnx(emitted, FEEDS)["y"]) > 40
    assert report.verdict == "pass"
    assert any(note.startswith("p: onnxruntime's optimizations") for note in report.notes)
    assert "runtime_check" in [stage.name for stage in report.stages]


def test_where_nothing_helps_no_gate_is_passed(quantized: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "can_be_kept", lambda _: False)
    report = quantized(POOLS["apart"]).report
    assert (report.verdict, report.findings[0].code) == ("fail", "runtime-differs")
    assert [clause.clause for clause in report.gate if not clause.holds] == ["runtime_agreement"]


@each("moved", ["", "u = Reshape(p, n) ", "t = Transpose<perm=[0,2,1]>(p) u = Transpose<perm=[0,2,1]>(t) "])
def test_a_sample_that_nobody_looked_at_may_lose_its_variance(tmp_path: Path, moved: str) -> None:
    p = "p" if moved else "u"
    text = (
        f"(float[N,2,7] x) => (float[N,2,7] y, float[N,2,7] z) {{ {p} = Relu(x) {moved}"
        "y = MeanVarianceNormalization<axes=[-1]>(u) v = Sigmoid(x) z = Neg(v) }"
    )
    model = make_model(text, {"n": np.array([0, 2, 7])})
    x = normal(16, 2, 7) + 5
    rows = np.arange(1, 5)  # the first, the sixth, the eleventh and the last are looked at
    x[rows] = 3 + rows[:, None, None] * 0.31 + 0.002 * np.arange(7, dtype=np.float32)
    report = quantize_file(tmp_path, model, {"x": x}, config(target="qnn")).report
    assert [layer.name for layer in report.layers if layer.reason_code == "not-finite"]
    assert any("makes output y NaN or Inf" in note for note in report.notes)
    assert report.fidelity.outputs[0].sqnr_db is not None


@each("spared", ["Max", "nothing"])
def test_a_process_may_die(quantized: Case, spared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deadly = tmp_path / "deadly.py"
    deadly.write_text(
        "import os, pathlib, runpy, sys\n"
        "model = (pathlib.Path(sys.argv[1]) / 'model.onnx').read_bytes()\n"
        f"if b'AveragePool' in model and b'{spared}' not in model: os.kill(os.getpid(), 11)\n"
        f"runpy.run_path({program.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(program, "__file__", str(deadly))
    if spared == "Max":
        assert any("ended by SIGSEGV" in note for note in quantized(POOLS["apart"]).report.notes)
    else:
        with pytest.raises(EngineError, match="ended by SIGSEGV"):
            quantized(POOLS["apart"])
