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
    """One term of what is made small.

    ``output_refs`` and ``label_refs`` are keyed by the place in the loss that names the output or the array, as a JSON
    pointer without its first slash; an index of an output counts from 0.
    """

    weight: float = Field(default=1.0, gt=0.0, le=1e6, description="Of this term in the sum of all.")

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
    output: str | None = Field(default=None, description="The output of logits; null: the first.")
    labels: str | None = Field(default=None, description="Array of class numbers; null: the dataset's labels.")
    smoothing: float = Field(default=0.0, ge=0.0, lt=1.0, description="Label smoothing (Szegedy et al. 2016).")

    def output_refs(self) -> dict[str, int | str]:
        """The one output."""
        return {"output": 0 if self.output is None else self.output}

    def label_refs(self) -> dict[str, LabelRef]:
        """The class numbers."""
        return {"labels": LabelRef(self.labels, True)}


class MeanSquareLoss(Loss):
    """Mean square distance of an output from targets of the dataset."""

    kind: Literal["mse"] = "mse"
    output: str | None = Field(default=None, description="Of the network; null: the first.")
    targets: str | None = Field(default=None, description="Array of the dataset; null: its labels.")

    def output_refs(self) -> dict[str, int | str]:
        """The one output."""
        return {"output": 0 if self.output is None else self.output}

    def label_refs(self) -> dict[str, LabelRef]:
        """The targets."""
        return {"targets": LabelRef(self.targets, False)}


class DistillationLoss(Loss):
    """Distance from what the float network makes of the same samples: needs no labels (Hinton et al. 2015)."""

    kind: Literal["distillation"] = "distillation"
    divergence: Literal["auto", "kl", "mse"] = Field(
        default="auto",
        description=(
            "kl: Kullback-Leibler divergence of the softmax, for logits of classes; mse: mean square distance over the "
            "float output's variance; auto: kl for outputs that a classification metric reads or class labels belong "
            "to, else mse."
        ),
    )
    temperature: float = Field(default=1.0, gt=0.0, le=100.0, description="Of the softmax, with kl.")
    outputs: tuple[str, ...] | None = Field(
        default=None, description="Null: all outputs of floats; none, where inner tensors alone are compared."
    )
    tensors: tuple[str, ...] = Field(
        default=(), max_length=64, description="Inner tensors to compare too: mean square distance over variance."
    )
    tensors_weight: float = Field(default=1.0, gt=0.0, description="Of the mean over all inner tensors.")

    @property
    def reads_reference(self) -> bool:
        """Always."""
        return True

    def output_refs(self) -> dict[str, int | str]:
        """Those that ``outputs`` names."""
        return {f"outputs/{k}": name for k, name in enumerate(self.outputs or ())}


class GraphLoss(Loss):
    """A loss given as an ONNX graph that returns one scalar: for detectors and whatever has a loss of its own.

    Its inputs are fed as those of a metric of kind ``onnx`` are; its operators need derivatives.
    """

    kind: Literal["onnx"] = "onnx"
    graph: GraphSource
    inputs: dict[str, GraphInput] = Field(default_factory=dict, max_length=64, description="By the graph's input.")

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
    """A random change of an input's samples, drawn anew each time; pictures are [n, channels, height, width]."""

    RANK: ClassVar[int | None] = None  # that the input must have; None: any

    input: str | None = Field(default=None, description="Of the model; null: the first.")


class Flip(_Augmentation):
    """Mirrors pictures left to right."""

    RANK = 4

    kind: Literal["flip"] = "flip"
    probability: float = Field(default=0.5, gt=0.0, le=1.0)


class Crop(_Augmentation):
    """Moves pictures by up to so many pixels, what is moved in being the border's pixels again."""

    RANK = 4

    kind: Literal["crop"] = "crop"
    pixels: int = Field(default=4, ge=1, le=256)


class Cutout(_Augmentation):
    """Sets a square of pictures to their mean (DeVries and Taylor 2017)."""

    RANK = 4

    kind: Literal["cutout"] = "cutout"
    pixels: int = Field(default=8, ge=1, le=1024, description="Side of the square.")
    probability: float = Field(default=1.0, gt=0.0, le=1.0)


class Shift(_Augmentation):
    """Moves sound along an axis by up to so many steps, what is moved in being 0."""

    kind: Literal["shift"] = "shift"
    steps: int = Field(default=100, ge=1)
    axis: int = Field(default=-1, description="Of the array; the first is that of samples.")

    @field_validator("axis")
    @classmethod
    def _not_that_of_samples(cls, axis: int) -> int:
        if axis == 0:
            raise ValueError("axis 0 is that of samples; steps lie along another, such as -1")
        return axis


class Noise(_Augmentation):
    """Adds Gaussian noise."""

    kind: Literal["noise"] = "noise"
    level: float = Field(default=0.01, gt=0.0, le=1.0, description="Over the standard deviation of the sample.")


Augmentation = Annotated[Flip | Crop | Cutout | Shift | Noise, Field(discriminator="kind")]


class Optimizer(Contract):
    """What moves the parameters."""

    kind: Literal["adam", "adamw", "sgd"] = "adamw"
    learning_rate: float | None = Field(
        default=None,
        gt=0.0,
        le=10.0,
        description=(
            "Of weights, at its peak; with adam and adamw in parts of each weight's root mean square. Null: 0.003 with "
            "adam and adamw, 0.01 with sgd."
        ),
    )
    scale_learning_rate: float | None = Field(
        default=None, ge=0.0, le=10.0, description="Of scales, in powers of two a step; null: as suits the weights'."
    )
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0, description="Of weights; scales and biases have none.")
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="Of sgd; Nesterov's.")
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = Field(
        default=(0.9, 0.999), description="Of adam and adamw."
    )


class Schedule(Contract):
    """How the learning rates change over the training."""

    kind: Literal["constant", "step", "cosine"] = "cosine"
    warmup: float = Field(default=0.05, ge=0.0, lt=1.0, description="Share of the steps over which they rise from 0.")
    step_share: float = Field(default=0.33, gt=0.0, lt=1.0, description="Of the training between two falls, with step.")
    step_factor: float = Field(default=0.1, gt=0.0, lt=1.0, description="What a fall leaves, with step.")
    final: float = Field(default=0.01, ge=0.0, le=1.0, description="Where cosine ends, in parts of the peak.")


class QuantizationAwareTraining(AlgorithmBase):
    """Trains weights, biases and scales of the quantized network with gradients passed straight through its rounding.

    It goes on from what the steps before it have reached, and ends with the best epoch on samples held back, or with a
    later one that these cannot tell from it.
    """

    place = 6
    final = True
    choice = "the weights and scales that qat has trained"

    method: Literal["qat"] = "qat"
    losses: tuple[TrainingLoss, ...] = Field(
        default=(DistillationLoss(),), min_length=1, max_length=8, description="Their weighted sum is made small."
    )
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=Schedule)
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description=(
            "At most; null: 30, or as many as make 1000 steps but no more than 100; any number where steps or seconds "
            "end it."
        ),
    )
    steps: int | None = Field(default=None, ge=1, le=10_000_000, description="At most; null: no limit.")
    seconds: float | None = Field(
        default=None,
        gt=0.0,
        description="At most; null: no limit. How many epochs fit hangs on the machine, and so do the bytes.",
    )
    batch_size: int = Field(default=32, ge=1, le=4096, description="Samples in a step.")
    data_size: int | None = Field(default=None, ge=4, description="Samples used; null: all of the calibration set.")
    augmentations: tuple[Augmentation, ...] = Field(default=(), max_length=16, description="In the order applied.")
    validation_share: float = Field(
        default=0.1, gt=0.0, lt=0.9, description="Of the samples: not trained on, the epoch is chosen by them."
    )
    patience: int | None = Field(
        default=None, ge=1, description="Epochs without a better one after which training ends; null: never."
    )
    gradient_clip: float | None = Field(default=1.0, gt=0.0, description="Largest norm of all gradients; null: any.")
    batch_norm: Literal["folded", "unfolded"] = Field(
        default="folded",
        description=(
            "folded: as part of the weights, statistics frozen; unfolded: normalized by each batch, trained, and "
            "folded into the weights for the last third of the training."
        ),
    )
    zero_points: Literal["fixed", "learned"] = Field(
        default="fixed", description="Of asymmetric activations; learned: they move by gradients, as scales do."
    )
    freeze_oscillations: bool = Field(
        default=True,
        description=(
            "Hold weights that keep jumping between two integers, from the middle of the training on (Nagel et al. "
            "2022, Overcoming Oscillations in Quantization-Aware Training)."
        ),
    )
    oscillation_threshold: float = Field(
        default=0.01, gt=0.0, lt=0.5, description="Average jumps per step from which on a weight is frozen at the end."
    )
    device: Device = Field(default="auto", description="Where the network is trained; auto: a GPU if there is one.")
    autocast: bool = Field(default=True, description="On a GPU: compute in bfloat16 where that is safe.")
    fixed_seed: int | None = Field(default=None, ge=0, description="Seed of all random choices; null: the config's.")

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
