"""Quantized models made float, and models that call onnxruntime's own operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.compatibility import is_quantized_op
from tests.unit.quantizer.toolbox import Arrays, make_model, op_types
from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.preparation.prepare import undo_quantization


def undo(model: onnx.ModelProto) -> tuple[Outcome, onnx.ModelProto]:
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
