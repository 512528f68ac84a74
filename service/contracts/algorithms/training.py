"""Quantization-aware training: the whole quantized network is trained by gradients through its rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from service.contracts.algorithms.base import AlgorithmBase
from service.contracts.algorithms.finetune import Device
from service.contracts.base import Contract
from service.contracts.metrics import GraphInput, GraphSource, LabelRef
from service.contracts.metrics.graph import named_arrays, named_outputs, reads_reference


class Loss(Contract):
    """One term of the loss.

    ``output_refs`` and ``label_refs`` are keyed by the place in the loss that names the output or the array, as a JSON
    pointer without its first slash; an index of an output counts from 0.
    """

    weight: float = Field(default=1.0, gt=0.0, le=1e6, description="Weight of this term in the sum.")

    @property
    def name(self) -> str:
        """What messages and the report call it."""
        return f"loss {type(self).model_fields['kind'].default}"

    @property
    def reads_reference(self) -> bool:
        """True if it reads the float model's outputs beside those of the quantized one."""
        return False

    def output_refs(self) -> dict[str, int | str]:
        """The outputs of the model that it reads."""
        return {}

    def label_refs(self) -> dict[str, LabelRef]:
        """The arrays of the dataset that it names; what feeds a graph's input by the input's name is not among them."""
        return {}


class CrossEntropyLoss(Loss):
    """Cross-entropy of the labels under the softmax of an output [n, classes, ...]."""

    kind: Literal["cross_entropy"] = "cross_entropy"
    output: str | None = Field(default=None, description="The logits output; null: the first.")
    labels: str | None = Field(default=None, description="Array of class indices; null: the dataset's labels.")
    smoothing: float = Field(default=0.0, ge=0.0, lt=1.0, description="Label smoothing (Szegedy et al. 2016).")

    def output_refs(self) -> dict[str, int | str]:
        """The one output."""
        return {"output": 0 if self.output is None else self.output}

    def label_refs(self) -> dict[str, LabelRef]:
        """The class numbers."""
        return {"labels": LabelRef(self.labels, True)}


class MeanSquareLoss(Loss):
    """Mean squared error of an output against targets of the dataset."""

    kind: Literal["mse"] = "mse"
    output: str | None = Field(default=None, description="Output of the network; null: the first.")
    targets: str | None = Field(default=None, description="Array with the targets; null: the dataset's labels.")

    def output_refs(self) -> dict[str, int | str]:
        """The one output."""
        return {"output": 0 if self.output is None else self.output}

    def label_refs(self) -> dict[str, LabelRef]:
        """The targets."""
        return {"targets": LabelRef(self.targets, False)}


class DistillationLoss(Loss):
    """Knowledge distillation.

    Distance from the float network's outputs on the same samples; needs no labels (Hinton et al. 2015).
    """

    kind: Literal["distillation"] = "distillation"
    divergence: Literal["auto", "kl", "mse"] = Field(
        default="auto",
        description=(
            "kl: Kullback-Leibler divergence of the softmax, for logits; mse: mean squared error relative to the "
            "float output's variance; auto: kl for outputs that a classification metric reads or class labels "
            "belong to, else mse."
        ),
    )
    temperature: float = Field(default=1.0, gt=0.0, le=100.0, description="Temperature of the softmax, with kl.")
    outputs: tuple[str, ...] | None = Field(
        default=None,
        description="Outputs to compare; null: all float outputs; none, if only inner tensors are compared.",
    )
    tensors: tuple[str, ...] = Field(
        default=(),
        max_length=64,
        description="Inner tensors to compare as well: mean squared error relative to the variance.",
    )
    tensors_weight: float = Field(default=1.0, gt=0.0, description="Weight of the mean over all inner tensors.")

    @property
    def reads_reference(self) -> bool:
        """Always."""
        return True

    def output_refs(self) -> dict[str, int | str]:
        """Those that ``outputs`` names."""
        return {f"outputs/{k}": name for k, name in enumerate(self.outputs or ())}


class GraphLoss(Loss):
    """A loss as an ONNX graph that returns one scalar: for detectors and other custom losses.

    Its inputs are bound like those of a metric of kind ``onnx``; its operators must be differentiable.
    """

    kind: Literal["onnx"] = "onnx"
    graph: GraphSource
    inputs: dict[str, GraphInput] = Field(
        default_factory=dict, max_length=64, description="Source of each input of the graph, by name."
    )

    @property
    def reads_reference(self) -> bool:
        """True if an input is fed with it."""
        return reads_reference(self.inputs)

    def output_refs(self) -> dict[str, int | str]:
        """Those that ``inputs`` names."""
        return named_outputs(self.inputs)

    def label_refs(self) -> dict[str, LabelRef]:
        """Those that ``inputs`` names."""
        return named_arrays(self.inputs)


TrainingLoss = Annotated[CrossEntropyLoss | MeanSquareLoss | DistillationLoss | GraphLoss, Field(discriminator="kind")]


class _Augmentation(Contract):
    """A random augmentation of an input's samples, drawn for each step; images are [n, channels, height, width]."""

    RANK: ClassVar[int | None] = None  # that the input must have; None: any

    input: str | None = Field(default=None, description="Input of the model; null: the first.")


class Flip(_Augmentation):
    """Flips images horizontally."""

    RANK = 4

    kind: Literal["flip"] = "flip"
    probability: float = Field(default=0.5, gt=0.0, le=1.0)


class Crop(_Augmentation):
    """Shifts images by up to this many pixels; the border's pixels are repeated."""

    RANK = 4

    kind: Literal["crop"] = "crop"
    pixels: int = Field(default=4, ge=1, le=256)


class Cutout(_Augmentation):
    """Cutout: sets a square of the image to its mean (DeVries and Taylor 2017)."""

    RANK = 4

    kind: Literal["cutout"] = "cutout"
    pixels: int = Field(default=8, ge=1, le=1024, description="Side of the square, in pixels.")
    probability: float = Field(default=1.0, gt=0.0, le=1.0)


class Shift(_Augmentation):
    """Shifts audio along an axis by up to this many steps, filled with 0."""

    kind: Literal["shift"] = "shift"
    steps: int = Field(default=100, ge=1)
    axis: int = Field(default=-1, description="Axis of the array; axis 0 is that of samples.")

    @field_validator("axis")
    @classmethod
    def _not_that_of_samples(cls, axis: int) -> int:
        if axis == 0:
            raise ValueError("axis 0 is that of samples; steps lie along another, such as -1")
        return axis


class Noise(_Augmentation):
    """Adds Gaussian noise."""

    kind: Literal["noise"] = "noise"
    level: float = Field(
        default=0.01, gt=0.0, le=1.0, description="Standard deviation of the noise relative to that of the sample."
    )


Augmentation = Annotated[Flip | Crop | Cutout | Shift | Noise, Field(discriminator="kind")]


class Optimizer(Contract):
    """The optimizer."""

    kind: Literal["adam", "adamw", "sgd"] = "adamw"
    learning_rate: float | None = Field(
        default=None,
        gt=0.0,
        le=10.0,
        description=(
            "Peak learning rate of weights; with adam and adamw relative to each weight's root mean square. Null:"
            " 0.003 with adam and adamw, 0.01 with sgd."
        ),
    )
    scale_learning_rate: float | None = Field(
        default=None,
        ge=0.0,
        le=10.0,
        description="Learning rate of scales, in powers of two per step; null: derived from that of weights.",
    )
    weight_decay: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Weight decay of weights; scales and biases have none."
    )
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="Nesterov momentum, with sgd.")
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = Field(
        default=(0.9, 0.999), description="Betas of adam and adamw."
    )


class Schedule(Contract):
    """Learning rate schedule."""

    kind: Literal["constant", "step", "cosine"] = "cosine"
    warmup: float = Field(default=0.05, ge=0.0, lt=1.0, description="Share of the steps for the warm-up from 0.")
    step_share: float = Field(
        default=0.33, gt=0.0, lt=1.0, description="Share of the training between two decays, with step."
    )
    step_factor: float = Field(default=0.1, gt=0.0, lt=1.0, description="Decay factor, with step.")
    final: float = Field(
        default=0.01, ge=0.0, le=1.0, description="Final learning rate of cosine, relative to the peak."
    )


class QuantizationAwareTraining(AlgorithmBase):
    """Quantization-aware training: trains weights, biases and scales with a straight-through estimator.

    It starts from the result of earlier steps and returns the best epoch on held-out samples, or a later one that is
    not significantly worse.
    """

    place = 6
    final = True
    modes = ("static", "weights_only")
    choice = "the weights and scales that qat has trained"

    method: Literal["qat"] = "qat"
    losses: tuple[TrainingLoss, ...] = Field(
        default=(DistillationLoss(),),
        min_length=1,
        max_length=8,
        description="Losses; their weighted sum is minimized.",
    )
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=Schedule)
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description=(
            "Largest number of epochs; null: 30, or as many as make 1000 steps but no more than 100; unlimited if"
            " steps or seconds is set."
        ),
    )
    steps: int | None = Field(default=None, ge=1, le=10_000_000, description="Largest number of steps; null: no limit.")
    seconds: float | None = Field(
        default=None,
        gt=0.0,
        description=(
            "Time limit in seconds; null: no limit. The number of epochs, and so the bytes of the model, then "
            "depend on the machine."
        ),
    )
    batch_size: int = Field(default=32, ge=1, le=4096, description="Batch size, in samples.")
    data_size: int | None = Field(default=None, ge=4, description="Number of samples; null: the whole calibration set.")
    generated_samples: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description=(
            "Language models: sequences drawn from the float model's own distribution (LLM-QAT), to learn from beside"
            " the calibration data; each takes a run of the float model per token. Refused where the model reads more"
            " than token ids, or returns no scores of the next token."
        ),
    )
    augmentations: tuple[Augmentation, ...] = Field(
        default=(), max_length=16, description="Augmentations, in the order applied."
    )
    validation_share: float = Field(
        default=0.1, gt=0.0, lt=0.9, description="Share of the samples that is held out and selects the epoch."
    )
    patience: int | None = Field(
        default=None, ge=1, description="Number of epochs without improvement after which training ends; null: never."
    )
    gradient_clip: float | None = Field(
        default=1.0, gt=0.0, description="Gradient clipping: largest norm of all gradients; null: none."
    )
    batch_norm: Literal["folded", "unfolded"] = Field(
        default="folded",
        description=(
            "BatchNormalization. folded: as part of the weights, statistics frozen; unfolded: normalized by each "
            "batch, trained, and folded into the weights for the last third of the training."
        ),
    )
    zero_points: Literal["fixed", "learned"] = Field(
        default="fixed", description="Zero points of asymmetric activations and weights; learned: trained like scales."
    )
    freeze_oscillations: bool = Field(
        default=True,
        description=(
            "Freeze weights that oscillate between two integers, from the middle of the training on (Nagel et al."
            " 2022, Overcoming Oscillations in Quantization-Aware Training)."
        ),
    )
    oscillation_threshold: float = Field(
        default=0.01,
        gt=0.0,
        lt=0.5,
        description="Oscillations per step, averaged, above which a weight is frozen at the end.",
    )
    device: Device = Field(default="auto", description="Device for training; auto: a GPU if there is one.")
    autocast: bool = Field(default=True, description="On a GPU, compute in bfloat16 where this is safe.")
    fixed_seed: int | None = Field(default=None, ge=0, description="Random seed; null: the seed of the config.")

    DEFAULT_EPOCHS: ClassVar[int] = 30
    DEFAULT_STEPS: ClassVar[int] = 1000
    MOST_DEFAULT_EPOCHS: ClassVar[int] = 100
    FEWEST_SAMPLES: ClassVar[int] = 4

    def most_epochs(self, epoch_steps: int) -> int | None:
        """Epochs after which it ends; None where another budget ends it.

        Args:
            epoch_steps: steps in an epoch.
        """
        if self.epochs is None and self.steps is None and self.seconds is None:
            wanted = -(-self.DEFAULT_STEPS // epoch_steps)
            return min(max(self.DEFAULT_EPOCHS, wanted), self.MOST_DEFAULT_EPOCHS)
        return self.epochs

    @model_validator(mode="after")
    def _each_augmentation_once(self) -> QuantizationAwareTraining:
        seen: set[tuple[str, str | None]] = set()
        for entry in self.augmentations:
            if (entry.kind, entry.input) in seen:
                raise ValueError(f"{entry.kind} occurs twice in augmentations of one input")
            seen.add((entry.kind, entry.input))
        return self

    def graph_sources(self) -> Iterator[GraphSource]:
        """Graphs that losses are given as."""
        yield from (loss.graph for loss in self.losses if isinstance(loss, GraphLoss))
