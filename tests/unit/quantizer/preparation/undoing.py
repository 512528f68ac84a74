"""Quantized models made float, those that onnxruntime quantizes, and such that call its own operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from service.contracts.compatibility import is_quantized_op
from tests.unit.quantizer.toolbox import Arrays, make_model, op_types
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.preparation.prepare import undo_quantization


def undo(model: onnx.ModelProto) -> tuple[PassOutcome, onnx.ModelProto]:
    """``model`` stays as it is; what comes back holds no quantized operator."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outcome = undo_quantization(ir.from_proto(copy))
    proto = ir.to_proto(outcome.model)
    onnx.checker.check_model(proto, full_check=True)
    assert not [op for op in op_types(proto) if is_quantized_op(op)]
    assert not [op for op in op_types(proto) if op in ("Cast", "BitShift")]
    return outcome, proto


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def microsoft(text: str, weights: Arrays, *, opset: int = 17) -> onnx.ModelProto:
    """A model whose text may call operators of onnxruntime's own domain, as MS.QGemm."""
    model = make_model(text.replace("MS.", "com.microsoft."), weights, opset=opset)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model


class Reader(CalibrationDataReader):
    def __init__(self, arrays: Arrays) -> None:
        self._left = iter([{"x": arrays["x"][k : k + 1]} for k in range(len(arrays["x"]))])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def by_onnxruntime(
    folder: Path, model: onnx.ModelProto, feeds: Arrays | None = None, *, prepared: bool = True, **options: Any
) -> onnx.ModelProto:
    """Quantized by onnxruntime: statically on ``feeds``, or dynamically without."""
    source, made = folder / "float.onnx", folder / "q.onnx"
    onnx.save(model, source)
    if prepared:
        quant_pre_process(source, folder / "prepared.onnx")
        source = folder / "prepared.onnx"
    if feeds is None:
        quantize_dynamic(source, made, **options)
    else:
        quantize_static(source, made, Reader(feeds), **options)
    return onnx.load(made)
