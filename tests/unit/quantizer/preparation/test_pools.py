"""Pools with explicit pads where onnx and onnxruntime count windows in two ways: the same values, and lengths."""

from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.preparation.passes.pooling import pools_as_counted
from worker.quantizer.preparation.passes.shapes import infer_shapes
from worker.quantizer.runtime.faults import RUNTIME_ERRORS


def drawn(chance: random.Random, lengths: list[int]) -> str:
    op, kernel = chance.choice(["MaxPool", "AveragePool", "LpPool"]), [chance.choice([2, 3]) for _ in range(2)]
    found = [f"kernel_shape={kernel}", f"strides={[chance.choice([1, 2, 3]) for _ in range(2)]}"]
    found += [f"dilations={[chance.choice([1, 2]) for _ in range(2)]}"] * chance.randint(0, 1)
    pads = f"pads={[chance.randrange(size) for size in kernel * 2]}"
    found.append(chance.choice([pads, *(f'auto_pad="{mode}"' for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"))]))
    found += ["ceil_mode=1"] * chance.randint(0, 1)
    found += ["count_include_pad=1"] * (op == "AveragePool" and chance.random() < 0.4)
    return f"(float[1,2,{lengths[0]},{lengths[1]}] x) => (float[1,2,A,B] y) {{ y = {op}<{', '.join(found)}>(x) }}"


@pytest.mark.parametrize("draws", [200, pytest.param(5000, marks=pytest.mark.long)])
def test_they_give_the_same_and_lengths_are_known(draws: int) -> None:
    ort.set_default_logger_severity(4)
    chance, changed = random.Random(1), 0
    for seed in range(draws):
        lengths = [chance.randint(4, 10) for _ in range(2)]
        text, x = drawn(chance, lengths), {"x": normal(1, 2, *lengths, seed=seed)}
        model = make_model(text, opset=19)
        try:
            expected = run_onnx(model, x)["y"]
        except RUNTIME_ERRORS:
            continue
        rewritten = ir.from_proto(model)
        if not pools_as_counted(rewritten).applied:
            continue
        rewritten.graph.outputs[0].shape = None
        infer_shapes(rewritten)
        np.testing.assert_allclose(run_onnx(ir.to_proto(rewritten), x)["y"], expected, atol=1e-5, err_msg=text)
        assert rewritten.graph.outputs[0].shape == expected.shape, text
        changed += 1
    assert changed > draws // 20
