"""A preparation pass that changes what the model computes is left out, and named; the model goes on as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.errors import EngineError
from tests.unit.quantizer.toolbox import make_model, normal, quantize_file, run_onnx, sqnr_db
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.preparation import prepare

# Every fault changes one constant: a weight, the shape, what is added to integers, the factor of a branch.
MODEL = (
    "(float[N,4] x) => (float[N,4] y, int64[N] i) { o = MatMul(x, v) h = MatMul(o, w) s = Reshape(h, shape) "
    "a = ArgMax<axis=1, keepdims=0>(h) i = Add(a, one) m = ReduceSum<keepdims=0>(x) c = Greater(m, zero) "
    "y = If(c) <then_branch = t () => (float[N,4] p) { p = Relu(s) }, "
    "else_branch = e () => (float[N,4] q) { q = Mul(s, factor) }> }"
)
WEIGHT = normal(4, 4)
CONSTANTS = {"v": normal(4, 4, seed=1), "w": WEIGHT, "shape": np.array([0, 4]), "one": np.array(1)}
CONSTANTS |= {"zero": np.float32(0), "factor": np.float32(3)}
# the first sample takes the first branch, and so do most others
SAMPLES = {"x": np.abs(normal(16, 4)) * np.where(np.arange(16) == 15, -1, 1)[:, None].astype(np.float32)}
FAULTS = {
    "NaN in a column": ("w", np.where(np.eye(4)[0] > 0, np.nan, WEIGHT).astype(np.float32)),
    "another rank": ("shape", np.array([0, 1, 4])), "other integers": ("one", np.array(2)),
    "the branch that the first samples do not take": ("factor", np.float32(3.2)),
}  # fmt: skip


def spoil(monkeypatch: pytest.MonkeyPatch, passes: list[str], name: str, value: np.ndarray) -> None:
    def spoiled(model: ir.Model) -> PassOutcome:
        model.graph.initializers[name].const_value = ir.tensor(value, name=name)
        return PassOutcome.counted(model, 1, "constants spoiled")

    for found in passes:
        monkeypatch.setattr(prepare, found, spoiled)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pass_that_changes_an_output_is_left_out(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(MODEL, CONSTANTS)
    spoil(monkeypatch, ["matmul_add_to_gemm"], *FAULTS[fault])
    result = quantize_file(tmp_path, model, SAMPLES)
    (step,) = [step for step in result.report.preparation if step.name == "matmul_add_to_gemm"]
    assert (step.applied, step.reason_code) == (False, prepare.CHANGED_OUTPUTS.code)
    assert any("leaves matmul_add_to_gemm out" in note for note in result.report.notes)
    for feeds in ({"x": SAMPLES["x"][:15]}, {"x": SAMPLES["x"][15:]}):
        expected, found = run_onnx(model, feeds), run_onnx(onnx.load_from_string(result.model), feeds)
        assert sqnr_db(expected["y"], found["y"]) > 25


def test_several_are_left_out_together_and_what_no_choice_mends_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(MODEL, CONSTANTS)
    spoil(monkeypatch, ["matmul_add_to_gemm", "fold_affine"], *FAULTS["other integers"])
    left = {step.name for step in quantize_file(tmp_path, model, SAMPLES).report.preparation if step.reason_code}
    assert {"matmul_add_to_gemm", "fold_affine"} <= left
    spoil(monkeypatch, ["inline_functions"], *FAULTS["other integers"])
    with pytest.raises(EngineError, match="preparation changed output 'i'"):
        quantize_file(tmp_path, model, SAMPLES)
