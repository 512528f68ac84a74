"""Both forms in which products with weights in blocks may be written, beside the float model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.report.statistics import Interval


class KernelFigures(Contract):
    """One form: standard is DequantizeLinear and MatMul, matmul_nbits is com.microsoft.MatMulNBits."""

    form: Literal["standard", "matmul_nbits"]
    emitted: bool = Field(description="True for the form that the model is written in.")
    accuracy_level: int | None = Field(
        default=None, description="Of MatMulNBits, as asked for; null for the standard form, where the runtime decides."
    )
    float_ms: float = Field(description="Of the float model, timed in turn with this form.")
    latency_ms: float
    ratio: float = Field(description="Over the float model's latency.")
    ratio_interval: Interval
    sqnr_db: float | None = Field(
        description="Of the worst output against the float model, by onnxruntime; null where it has none."
    )
    samples: int = Field(ge=1, description="That the SQNR was measured on, the same for both forms.")


class Kernels(Contract):
    """Both forms, measured, or why only one was."""

    products: int = Field(ge=1, description="Nodes that may be written in either form.")
    forms: tuple[KernelFigures, ...] = ()
    reason: str | None = Field(default=None, description="Why they were not compared.")
    reason_code: str | None = Field(default=None, description="Stable code of the reason; docs/reasons.md lists them.")
