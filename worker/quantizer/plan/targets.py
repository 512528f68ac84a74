"""What a target can run on integers, as data: operator type -> role, or the reason why it stays in float."""

from __future__ import annotations

from dataclasses import dataclass

from worker.quantizer.plan.types import Role


@dataclass(frozen=True)
class Target:
    """A hardware or runtime profile.

    Attributes:
        roles: operators with an integer kernel.
        fusible: activation functions that the linear or arithmetic node before them takes in.
        lossless: operators that hand on the very integers they get.
        reasons: why some known operators stay in float; any other has no integer kernel.
    """

    name: str
    roles: dict[str, Role]
    fusible: frozenset[str]
    lossless: frozenset[str]
    reasons: dict[str, str]

    def reason(self, op_type: str) -> str:
        """Why ``op_type`` stays in float."""
        return self.reasons.get(op_type, f"{self.name} has no integer kernel for {op_type}")


_TRANSPARENT = (
    "AveragePool",
    "DepthToSpace",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Pad",
    "Reshape",
    "Resize",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)

ONNXRUNTIME_CPU = Target(
    name="onnxruntime_cpu",
    roles={
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), Role.LINEAR),
        **dict.fromkeys(("Add", "Mul", "Concat"), Role.ARITHMETIC),
        **dict.fromkeys(("GlobalAveragePool", "LeakyRelu", "Sigmoid", "Relu", "Clip"), Role.UNARY),
        **dict.fromkeys(_TRANSPARENT, Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip"}),
    lossless=frozenset(_TRANSPARENT) - {"AveragePool", "Resize"},
    reasons={
        "Softmax": "Softmax stays in float: its output needs more than 8 bits near 0",
        "LayerNormalization": "normalization stays in float: onnxruntime_cpu has no integer kernel for it",
        "InstanceNormalization": "normalization stays in float: onnxruntime_cpu has no integer kernel for it",
        "LSTM": "recurrent layers stay in float: onnxruntime_cpu has no static integer kernel for LSTM",
        "GRU": "recurrent layers stay in float: onnxruntime_cpu has no static integer kernel for GRU",
    },
)

TARGETS = {target.name: target for target in (ONNXRUNTIME_CPU,)}
