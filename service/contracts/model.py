"""What is known of a model after validation."""

from __future__ import annotations

from service.contracts.base import Contract


class TensorInfo(Contract):
    """A model input or output. A dynamic axis is given by its name, or None where it has none."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


class ModelSummary(Contract):
    """Facts of an accepted model. ``dtype`` words are numpy's (float32, int64, bfloat16 ...); 'other' for sequences
    and maps.
    """

    ir_version: int
    opset: dict[str, int]
    producer: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    node_count: int
    op_counts: dict[str, int]
    parameter_count: int
    size_bytes: int
    sha256: str
