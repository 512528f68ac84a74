"""Fast finetuning, layer after layer: AdaRound and AdaQuant."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from service.contracts.algorithms.base import ALTERNATIVES, AlgorithmBase, Choice
from service.contracts.base import Contract

FinetunedOp = Literal["Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization"]
FINETUNED_OPS: tuple[FinetunedOp, ...] = get_args(FinetunedOp)


def _solver(word: object) -> object:
    """Configs from before ``moments`` had its name call that solver ``gram``."""
    return "moments" if word == "gram" else word


Solver = Annotated[Literal["moments", "gradient"], BeforeValidator(_solver)]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|(cuda|rocm)(:\d+)?)$")]

# Said in two parts: generators of clients take no enumeration of texts and numbers.
MemoryLevel = Annotated[
    Literal["auto", 0, 1, 2],
    WithJsonSchema({"anyOf": [{"const": "auto", "type": "string"}, {"enum": [0, 1, 2], "type": "integer"}]}),
]


class LearningRateAdjust(Contract):
    """Another learning rate for layers with a large initial error."""

    threshold: float = Field(gt=0.0, description="Mean squared error of the layer's output before optimization.")
    learning_rate: float = Field(gt=0.0, description="Learning rate for layers whose error exceeds the threshold.")


class Finetuning(AlgorithmBase):
    """Fields shared by AdaRound and AdaQuant.

    Layers are optimized once, in order, each with the inputs from the network quantized so far.
    """

    place = 4
    modes = ("static", "weights_only", "dynamic")

    data_size: int | None = Field(default=None, ge=1, description="Number of samples; null: the whole calibration set.")
    batch_size: int = Field(default=8, ge=1, le=4096, description="Batch size of the gradient solver, in samples.")
    num_iterations: int = Field(default=1000, ge=1, le=1_000_000, description="Number of steps of the gradient solver.")
    optim_device: Device = Field(
        default="auto", description="Device that optimizes layers, for every solver; auto: a GPU if there is one."
    )
    infer_device: Device = Field(default="auto", description="Device that computes the inputs of the next layers.")
    fixed_seed: int | None = Field(default=None, ge=0, description="Random seed; null: the seed of the config.")
    early_stop: bool = Field(default=False, description="Stop training a layer when its error no longer decreases.")
    lr_adjust: LearningRateAdjust | None = Field(
        default=None, description="Learning rate for layers with a large initial error."
    )
    target_op_type: tuple[FinetunedOp, ...] = Field(
        default=FINETUNED_OPS, min_length=1, description="Nodes to optimize."
    )
    selective_update: bool = Field(
        default=False, description="Keep the new weights of a layer only if the error of the whole network decreases."
    )
    output_index: int = Field(
        default=0, ge=0, description="Index of the network output that selective_update evaluates."
    )
    drop_ratio: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of a layer's inputs that comes from the quantized network (QDrop).",
    )
    output_qdq: bool = Field(
        default=False, description="Compare outputs after the Q/DQ pair of a layer's output (gradient solver)."
    )
    mem_opt_level: MemoryLevel = Field(
        default="auto",
        description=(
            "Where layer inputs are kept: 0 all in memory, 1 one layer at a time, 2 on disk; auto: by free memory."
        ),
    )
    cache_limit_bytes: int | None = Field(
        default=None, ge=1, description="Disk space for layer inputs, in bytes; null: what the job may write."
    )
    block_wise: bool = Field(default=False, description="Reconstruct each residual block as a unit (gradient solver).")
    max_solver_seconds: float | None = Field(
        default=None,
        gt=0.0,
        description=(
            "Leave the algorithm out where the moments solver should take longer, told by the shapes of the weights "
            "alone at 2.2e10 multiplications a second, so that it is the same on every machine; null: run in any case."
        ),
    )


class AdaRound(Finetuning):
    """AdaRound: rounds every weight up or down to minimize the change of the layer's output (Nagel et al.

    2020, Up or Down?).
    """

    choice = "the integers that adaround has chosen"
    excludes: ClassVar[dict[str, str]] = {"adaquant": "integers of weights"}
    without_integers = "adaquant"

    method: Literal["adaround"] = "adaround"
    solver: Solver = Field(
        default="moments",
        description=(
            "moments: coordinate descent over integers on the quadratic error, from second moments of the inputs;"
            " layers with too many inputs use the other solver. gradient: the paper's relaxation, by Adam."
        ),
    )
    learning_rate: float = Field(default=0.1, gt=0.0, description="Learning rate of the gradient solver.")
    reg_param: float | None = Field(
        default=None,
        ge=0.0,
        description=(
            "Weight of the regularizer (solver gradient), 0.01 in the paper; null: chosen per layer by its error."
        ),
    )
    beta_range: tuple[float, float] = Field(
        default=(20.0, 2.0), description="Start and end value of the regularizer's exponent."
    )
    warm_start: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="Share of the steps that run without the regularizer."
    )
    update_bias: bool = Field(default=True, description="Refit the bias (solver moments).")
    unrestricted: Choice = Field(
        default=True,
        description=(
            "Let a weight move beyond the next integer up or down (solver moments); auto: both are tried, and the"
            " network's outputs on held-out samples decide."
        ),
        json_schema_extra={ALTERNATIVES: [True, False]},
    )
    scale_refit: Choice = Field(
        default=False,
        description=("Refit weight scales if their kind allows it (solver moments); auto: both are tried."),
        json_schema_extra={ALTERNATIVES: [True, False]},
    )


class AdaQuant(Finetuning):
    """AdaQuant: updates weights by gradients to minimize the change of the quantized layer's output.

    Rounding has straight-through gradients (Hubara et al. 2020, Improving Post Training Neural Quantization).
    """

    choice = "the integers that adaquant has chosen"

    method: Literal["adaquant"] = "adaquant"
    solver: Solver = Field(
        default="gradient",
        description=(
            "gradient: as in the paper, by Adam, for all types and normalizations; moments: the same squared "
            "error by coordinate descent over the integers, from second moments of the inputs, several times "
            "faster; layers without integer weights are skipped."
        ),
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0.0,
        description=(
            "Constant learning rate of weights and biases; null: for each weight a fraction of its scale, for "
            "biases of the layer's error, decaying to 0. AMD Quark uses 1e-5 and 3000 steps of one sample."
        ),
    )
    num_iterations: int = Field(default=300, ge=1, le=1_000_000, description="Steps.")
    update_bias: bool = Field(default=True, description="Refit the bias.")
    update_scales: bool = Field(default=False, description="Refit weight scales if their kind allows it.")
    dampening: bool = Field(
        default=True,
        description=(
            "Penalize changes of a weight's integer by the curvature of the error, so that a weight changes to "
            "another integer only if that reduces the error; false: as in the paper."
        ),
    )
