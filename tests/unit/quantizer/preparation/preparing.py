"""Preparation with chosen passes, held against onnxruntime on the model as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.preparation import PreparationSpec
from tests.unit.quantizer.toolbox import Arrays, run_onnx
from worker.quantizer.preparation.prepare import Prepared, prepare


def prepare_with(model: onnx.ModelProto, **flags: Any) -> tuple[Prepared, onnx.ModelProto]:
    """The prepared model, as the engine holds it and as a proto; ``model`` stays as it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    prepared = prepare(ir.from_proto(copy), PreparationSpec(**flags))
    return prepared, ir.to_proto(prepared.model)


def assert_equal_outputs(model: onnx.ModelProto, other: onnx.ModelProto, feeds: Arrays, tolerance: float) -> None:
    """Same names, dtypes, shapes; values within ``tolerance`` of the largest one."""
    onnx.checker.check_model(other, full_check=True)
    expected, got = run_onnx(model, feeds, optimized=False), run_onnx(other, feeds, optimized=False)
    assert list(expected) == list(got)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        if array.dtype.kind == "f" and array.size:
            largest = np.abs(array).max()
            np.testing.assert_allclose(got[name], array, rtol=0, atol=tolerance * largest + 1e-9, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], array, err_msg=name)


def same(
    model: onnx.ModelProto, feeds: Arrays, *, tolerance: float = 1e-5, **flags: Any
) -> tuple[Prepared, onnx.ModelProto]:
    """Prepare with ``flags`` and compare."""
    prepared, proto = prepare_with(model, **flags)
    assert_equal_outputs(model, proto, feeds, tolerance)
    return prepared, proto
