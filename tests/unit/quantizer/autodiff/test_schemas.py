"""The operators in torch against onnxruntime, over what the operators' schemas allow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
import torch

from service.contracts.errors import NotDifferentiableError
from tests.unit.quantizer.autodiff.schema_cases import Drawn, drawn
from tests.unit.quantizer.toolbox import run_onnx
from worker.quantizer.autodiff.operators import COMPUTE
from worker.quantizer.autodiff.program import Program
from worker.quantizer.graph.values import plain_attributes
from worker.quantizer.ops.windows import Window
from worker.quantizer.runtime.faults import RUNTIME_ERRORS


def outcome(case: Drawn) -> str:
    """``same``, ``refused`` by the twin, or ``skipped`` as the runtime refuses it; raises where the two differ."""
    try:
        expected = run_onnx(case.model, case.feeds, optimized=False)
    except RUNTIME_ERRORS:
        return "skipped"
    try:
        program = Program(ir.from_proto(case.model).graph, device=torch.device("cpu"))
    except NotDifferentiableError as error:
        assert case.model.graph.node[0].op_type in str(error)
        return "refused"
    made = program({name: torch.from_numpy(array.copy()) for name, array in case.feeds.items()})
    for name, wanted in expected.items():
        got = made[name].numpy()
        if case.is_unordered:
            got, wanted = (np.sort(each, axis=None) for each in (got, wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, strict=True)
    return "same"


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.long)])
def test_twin_and_runtime_agree(count: int) -> None:
    found: Counter[str] = Counter()
    alike = set()
    for op_type in COMPUTE:
        for case in drawn(op_type, count):
            try:
                result = outcome(case)
            except Exception as error:
                raise AssertionError(f"twin and runtime differ: {case}") from error
            found[result] += 1
            alike.update([op_type] if result == "same" else [])
    print(f"{found.total()} combinations: {dict(found)}")
    assert alike == set(COMPUTE)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.long)])
def test_windows_gather_what_the_runtime_reads(op_type: str, count: int) -> None:
    compared = 0
    for case in drawn(op_type, count):
        (node,), x, weight = ir.from_proto(case.model).graph, case.feeds["x0"], case.feeds["x1"]
        try:
            (expected,) = run_onnx(case.model, case.feeds, optimized=False).values()
        except RUNTIME_ERRORS:
            continue
        if "group" in node.attributes or "x2" in case.feeds:
            continue
        window = Window.of(weight.shape[2:], plain_attributes(node), transposed=op_type == "ConvTranspose")
        seen, inside = window.gather(x, np.arange(window.positions(x)))
        matrix = weight.swapaxes(0, 1) if window.transposed else weight
        made = matrix.reshape(len(matrix), -1) @ (seen * inside).reshape(-1, seen.shape[-1])
        got = made.reshape(-1, len(x), *window.extent(x.shape[2:])).swapaxes(0, 1)
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4, strict=True, err_msg=str(case))
        compared += 1
    assert compared > count / 10
