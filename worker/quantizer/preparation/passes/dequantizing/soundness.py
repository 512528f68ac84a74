"""Whether a node has the operands and attributes that its operator takes.

Operators of onnxruntime's own domain are unknown to ONNX's checker, so that nobody has looked at them before.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from service.contracts.reason import declare

MALFORMED = declare(
    "malformed-operator", "it lacks an operand, or an attribute has another type than its operator takes"
)

_LEAST_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Gather", "Mul", "Pad", "Sub"), 2),
    **dict.fromkeys(("DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulNBits", "QLinearConcat"), 3),
    "DynamicQuantizeLSTM": 11,
    "MatMulIntegerToFloat": 4,
}
_OUTPUTS = {"DynamicQuantizeLinear": 3}
# A name means the same with all operators of interest.
_KINDS: Mapping[str, ir.AttributeType] = {
    **dict.fromkeys(("K", "N", "allowzero", "axis", "bits", "block_size", "channels_last"), ir.AttributeType.INT),
    **dict.fromkeys(("gather_axis", "opset", "output_dtype", "quantize_axis", "to"), ir.AttributeType.INT),
    **dict.fromkeys(("transA", "transB", "weight_prepacked"), ir.AttributeType.INT),
    **dict.fromkeys(("axes", "perm"), ir.AttributeType.INTS),
    **dict.fromkeys(("coordinate_transformation_mode", "direction", "mode"), ir.AttributeType.STRING),
    "alpha": ir.AttributeType.FLOAT,
}


def well_formed(node: ir.Node) -> bool:
    """True if the operands that a form reads are there, and the attributes have the types that it expects."""
    if len(node.inputs) < _LEAST_INPUTS.get(node.op_type, 1) or node.inputs[0] is None:
        return False
    if len(node.outputs) < _OUTPUTS.get(node.op_type, 1):
        return False
    return all(attribute.type is _KINDS.get(name, attribute.type) for name, attribute in node.attributes.items())
