"""What is known of a model after validation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract

# Bounds of ``ModelSummary.node_names``: a model beyond them is judged by the engine alone.
MAX_NODE_NAMES = 20_000
MAX_NODE_NAME_CHARACTERS = 1_000_000

# As which a model is uploaded: itself, as new weights of another model, or as an archive of torch.export.
ModelFormat = Literal["onnx", "safetensors", "pt2"]
# The files of a model that validation makes; all else that was uploaded for it is what it was made of.
MADE_MODEL = "model.onnx"
MADE_DATA = "model.onnx.data"


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
    node_names: tuple[str, ...] | None = Field(
        default=None,
        description=(
            "Names by which include and exclude may call nodes: those of the uploaded model, then those that "
            "preparation gives. Null if there are more than 20,000, in older records and in lists of models."
        ),
    )
    prepared_op_types: tuple[str, ...] | None = Field(
        default=None, description="Operators that only preparation brings in, such as Gemm for MatMul and Add."
    )

    def outline(self) -> ModelSummary:
        """Without the names of the nodes, which would make up most of a list."""
        return self.model_copy(update={"node_names": None})
