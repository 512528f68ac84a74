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
    """Linear layers of the same shape."""

    groups: int
    outputs: int = Field(description="Outputs per group.")
    inputs: int = Field(description="Inputs per group.")
    count: int = Field(description="Number of layers of this shape.")

    @property
    def elements(self) -> int:
        """Weights of all of them."""
        return self.groups * self.outputs * self.inputs * self.count


class ForwardPass(Contract):
    """One run of the float model on generated inputs, timed during validation."""

    seconds: float = Field(description="Duration of the run.")
    samples: int = Field(description="Batch size.")
    elements: int = Field(description="Elements per sample of the largest input.")
    threads: int


class Work(Contract):
    """Computation of a network for one sample. A dynamic axis counts as 64, a dynamic first axis as 1."""

    multiply_adds: int = Field(description="Multiply-adds of convolutions, matrix products and recurrent layers.")
    activation_bytes: int = Field(description="Bytes of all activations together, in float32.")
    largest_activation_bytes: int
    nodes: int = Field(description="Number of nodes after preparation.")
    matrices: tuple[MatrixKind, ...] = Field(description="Linear layers with constant weights.")
    forward: ForwardPass | None = Field(
        default=None,
        description="Null if the model is too large for a quick run, or does not run on generated inputs.",
    )


class TensorInfo(Contract):
    """A model input or output. A dynamic axis is its name, or null if it has none."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


class ModelSummary(Contract):
    """Summary of a validated model. ``dtype`` values are those of numpy (float32, int64, bfloat16 ...); 'other' for
    sequences and maps.
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
            "Node names that include and exclude accept: names in the uploaded model, then names assigned by "
            "preparation. Null if there are more than 20,000, in older records and in lists of models."
        ),
    )
    prepared_op_types: tuple[str, ...] | None = Field(
        default=None, description="Operator types that only preparation introduces, such as Gemm for MatMul and Add."
    )

    notes: tuple[str, ...] = Field(
        default=(), description="What to know before a job runs, such as that the model is already quantized."
    )
    work: Work | None = Field(
        default=None, description="Null if shapes are unknown, in older records and in lists of models."
    )

    def outline(self) -> ModelSummary:
        """Without the names of the nodes and the work, which would make up most of a list."""
        return self.model_copy(update={"node_names": None, "work": None})
