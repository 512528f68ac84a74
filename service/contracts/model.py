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


# What an axis without a size counts as, where work is told; the first axis counts as one sample.
ASSUMED_LENGTH = 64
MOST_MATRIX_KINDS = 256


class MatrixKind(Contract):
    """Linear layers of one shape."""

    groups: int
    outputs: int = Field(description="Per group.")
    inputs: int = Field(description="Per group.")
    count: int = Field(description="Layers of this shape.")

    @property
    def elements(self) -> int:
        """Weights of all of them."""
        return self.groups * self.outputs * self.inputs * self.count


class ForwardPass(Contract):
    """One run of the float model on made-up inputs, timed when it was validated."""

    seconds: float = Field(description="Of the whole run.")
    samples: int = Field(description="That it was given at a time.")
    elements: int = Field(description="Of the largest input, per sample.")
    threads: int


class Work(Contract):
    """What a network computes for one sample. An axis without a size counts as 64, a first one as 1."""

    multiply_adds: int = Field(description="Of products: convolutions, matrices, recurrent layers.")
    activation_bytes: int = Field(description="Of all results together, in float32.")
    largest_activation_bytes: int
    nodes: int = Field(description="Once prepared.")
    matrices: tuple[MatrixKind, ...] = Field(description="Linear layers with constant weights.")
    forward: ForwardPass | None = Field(
        default=None,
        description="Null where the model was too large for a quick try, or does not run on made-up inputs.",
    )


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

    notes: tuple[str, ...] = Field(
        default=(), description="What to know before a job runs, such as that the model is already quantized."
    )
    work: Work | None = Field(
        default=None, description="Null where shapes are unknown, in older records and in lists of models."
    )

    def outline(self) -> ModelSummary:
        """Without the names of the nodes and the work, which would make up most of a list."""
        return self.model_copy(update={"node_names": None, "work": None})
