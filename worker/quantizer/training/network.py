"""The float network and the quantized one in torch on the same samples, and how good the latter is on others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from service.contracts.algorithms.training import QuantizationAwareTraining
from service.contracts.base import below
from worker.quantizer.autodiff.program import Program, refusals
from worker.quantizer.data import SampleBatch
from worker.quantizer.evaluation.certainty import Evidence, surely_differ
from worker.quantizer.evaluation.side_by_side import MetricMeasurement, Twins
from worker.quantizer.graph.values import name_of
from worker.quantizer.ops.linear import is_linear
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.run.interface import Run
from worker.quantizer.training.loss_terms import tensor_of
from worker.quantizer.training.losses import Losses, Tensors
from worker.quantizer.training.operands import measure
from worker.quantizer.training.samples import Minibatch, Numbers, SampleSplit, TrainingSamples
from worker.quantizer.training.twin import Twin

# What one run forward and backward may take: multiplications, and elements of activations. So a cancel is heard soon
# and memory stays bounded, whatever the batch.
_MOST_PRODUCTS, _MOST_ELEMENTS = 2e9, 64e6
# What outputs of the float network may take in memory; more are computed batch by batch, every time.
_MOST_TARGET_BYTES = 256 << 20


class Networks:
    """Both networks of a draft.

    ``outputs`` are those that a loss reads, others are given too where they can be; ``inner`` are tensors that are
    compared.

    Raises:
        NotDifferentiableError: an operator has no derivative here.
    """

    def __init__(
        self,
        draft: Draft,
        outputs: Collection[str],
        inner: Sequence[str],
        *,
        device: torch.device,
        learn_zeros: bool = False,
    ) -> None:
        self._graph = draft.graph
        every = tuple(name_of(value) for value in draft.graph.outputs)
        self._outputs = tuple(name for name in every if name in outputs or not refusals(draft.graph, (name,)))
        #: False if the network has outputs that are not computed, as they have no derivative.
        self.gives_all_outputs = self._outputs == every
        wanted = tuple(dict.fromkeys((*self._outputs, *inner)))
        self._inner = tuple(inner)
        self.device = device
        self.twin = Twin(draft, device=device, wanted=wanted, learn_zeros=learn_zeros)  # the quantized one
        self._teacher = Program(draft.graph, device=device, wanted=wanted)
        self._rows = 1
        self._largest = 0.0

    def look(self, arrays: Mapping[str, np.ndarray], samples: int) -> None:
        """Find out by some samples how many may run together: what they take hangs on their sizes."""
        sizes: dict[str, float] = {}

        def note(name: str, tensor: Tensor, known: object) -> None:
            sizes[name] = tensor.numel() / samples

        feeds = self.feeds(arrays)
        with torch.no_grad():
            self._teacher({name: feeds[name] for name in self._teacher.inputs}, note)
        self._rows = _rows(self._graph, sizes)
        self._largest = max(sizes.values(), default=0.0)

    def largest_part(self, size: int) -> int:
        """Samples of a batch of ``size`` that run together; the gradients of the parts are added up."""
        parts = math.ceil(size / self._rows)
        return math.ceil(size / parts)

    def largest_elements(self, size: int) -> int:
        """Elements of the largest tensor of the float network, of a batch of ``size`` samples that may run in parts."""
        return int(self._largest * self.largest_part(size))

    def feeds(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Inputs where the networks compute."""
        return {name: tensor_of(array, self.device) for name, array in arrays.items()}

    def unfold(self, batches: Iterable[Mapping[str, np.ndarray]]) -> int:
        """Give the twin's convolutions normalizations, with the statistics of the float network; how many there are.

        Batches are inputs by name, few enough samples each to run together.
        """
        found = self.twin.normalizable
        if found:
            self.twin.unfold(measure(self._graph, found, map(self.feeds, batches), self.device))
        return len(found)

    def student(self, feeds: Mapping[str, Tensor]) -> Tensors:
        """What the quantized network makes of inputs."""
        return self._parted(self.twin(feeds))

    def teacher(self, feeds: Mapping[str, Tensor]) -> Tensors:
        """What the float network makes of them; without gradients."""
        with torch.no_grad():
            return self._parted(self._teacher({name: feeds[name] for name in self._teacher.inputs}))

    def both(self, arrays: Mapping[str, np.ndarray]) -> tuple[Tensors, Tensors]:
        """The quantized and the float network on the same samples."""
        feeds = self.feeds(arrays)
        return self.student(feeds), self.teacher(feeds)

    def _parted(self, made: Mapping[str, Tensor]) -> Tensors:
        return Tensors({name: made[name] for name in self._outputs}, {name: made[name] for name in self._inner})


def teacher_outputs(networks: Networks, samples: TrainingSamples, run: Run) -> Tensors | None:
    """Outputs of the float network for all samples, in order, [samples, ...]: computed once, as they never change.

    None: they are too large, or not by sample.

    Raises:
        CanceledError: the run was canceled.
    """
    if samples.fixed_batch is not None:
        return None
    size = networks.largest_part(min(samples.count, 32))
    parts: dict[str, list[Tensor]] = {}
    taken = 0
    for first in range(0, samples.count, size):
        run.check()
        numbers = np.arange(first, min(first + size, samples.count))
        made = networks.teacher(networks.feeds(samples.batch(numbers).feeds)).outputs
        for name, tensor in made.items():
            if tensor.dim() == 0 or tensor.shape[0] != len(numbers):
                return None
            taken += tensor.numel() * tensor.element_size()
            parts.setdefault(name, []).append(tensor)
        if taken / (numbers[-1] + 1) * samples.count > _MOST_TARGET_BYTES:
            return None
    return Tensors({name: torch.cat(found) for name, found in parts.items()})


@dataclass(frozen=True)
class TrainingContext:
    """What a training works with."""

    spec: QuantizationAwareTraining  # of the config
    toolkit: Toolkit  # of the step
    networks: Networks  # of the draft
    losses: Losses  # of the spec
    samples: TrainingSamples  # of the calibration set, with the arrays of losses and metrics
    split: SampleSplit  # which of them serve for what

    @property
    def run(self) -> Run:
        """Asked whether to stop, and told how far it is."""
        return self.toolkit.services.run

    @property
    def seed(self) -> int:
        """Of all draws."""
        return seed_of(self.spec, self.toolkit)

    @property
    def pointer(self) -> str:
        """Of the algorithm in the config's document."""
        return pointer_of(self.spec, self.toolkit)


def seed_of(spec: QuantizationAwareTraining, toolkit: Toolkit) -> int:
    """The algorithm's own seed, else the config's."""
    return toolkit.case.config.seed if spec.fixed_seed is None else spec.fixed_seed


def pointer_of(spec: QuantizationAwareTraining, toolkit: Toolkit) -> str:
    """The place of the algorithm in the config's document."""
    methods = [algorithm.method for algorithm in toolkit.case.config.algorithms]
    return below("/algorithms", methods.index(spec.method) if spec.method in methods else 0)


def _rows(graph: ir.Graph, sizes: Mapping[str, float]) -> int:
    """Samples that may run together.

    ``sizes`` are elements of its tensors for one sample.
    """
    products = sum(
        sizes.get(value.name or "", 0.0) * _summed(node) for node in graph if is_linear(node) for value in node.outputs
    )
    elements = sum(sizes.values())
    return max(1, int(min(_MOST_PRODUCTS / max(products, 1.0), _MOST_ELEMENTS / max(elements, 1.0))))


def _summed(node: ir.Node) -> float:
    """Products that are summed for one element of a linear node's result."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    shape = (
        () if weight is None or weight.shape is None else tuple(size for size in weight.shape if isinstance(size, int))
    )
    if len(shape) < 2:
        return 1.0
    outputs = {"Conv": shape[0], "ConvTranspose": shape[1]}.get(node.op_type, shape[-1])
    return math.prod(shape) / max(outputs, 1)


# How good a network in training is on samples that it is not trained on.

# Batches are as small as it takes to have so many: chance is told from how they differ.
_BATCH, _BATCHES = 16, 16


@dataclass(frozen=True)
class ValidationScore:
    """How good a network is."""

    loss: float  # mean over the samples
    metric: float | None  # None where there are no labels for it
    evidence: Evidence | None = None  # what the metric rests on
    losses: tuple[float, ...] = ()  # the loss batch by batch


class Validation:
    """Some of the samples of a training.

    The losses of ``context`` are settled.
    """

    def __init__(self, context: TrainingContext, numbers: Numbers) -> None:
        self._case, self._run, self._losses = context.toolkit.case, context.run, context.losses
        self._samples, self._numbers, self._networks = context.samples, numbers, context.networks
        # what the best epoch is chosen by: the gate's metric; None: there are no labels for it, so the loss
        self.metric = self._metric()

    @property
    def samples(self) -> int:
        """How many."""
        return len(self._numbers)

    def measure(self) -> ValidationScore:
        """Loss and metric of the quantized network.

        Raises:
            CanceledError: the run was canceled.
        """
        total, losses = 0.0, []
        found = None if self.metric is None else MetricMeasurement(self._case.metrics, self.metric, part=True)
        with torch.no_grad():
            for batch in self._batches():
                self._run.check()
                student, teacher = self._networks.both(batch.feeds)
                value = self._losses(
                    student.cut(batch.valid, batch.size), teacher.cut(batch.valid, batch.size), batch.arrays
                )
                losses.append(float(value))
                total += losses[-1] * batch.valid
                if found is not None:
                    expected, got = (
                        {output: tensor.cpu().numpy() for output, tensor in made.outputs.items()}
                        for made in (teacher, student)
                    )
                    found.update(Twins(self._as_stored(batch), expected, got))
        if found is None:
            return ValidationScore(total / self.samples, None, losses=tuple(losses))
        return ValidationScore(total / self.samples, found.value, found.evidence, tuple(losses))

    def is_better(self, one: ValidationScore, other: ValidationScore) -> bool:
        """True if ``one`` is better: by the metric where that moves by more than chance, else by the loss.

        Over few samples a label more or less means nothing, while the loss sees every score of every sample.
        """
        if not np.isfinite(one.loss):
            return False
        if not np.isfinite(other.loss):
            return True
        gain = self._sure_gain(one, other)
        return one.loss < other.loss if gain is None else gain > 0

    def is_surely_worse(self, one: ValidationScore, other: ValidationScore) -> bool:
        """True if ``one`` is worse by more than chance, batch by batch: by the metric, else by the loss."""
        if not np.isfinite(one.loss):
            return True
        if not np.isfinite(other.loss):
            return False
        gain = self._sure_gain(one, other)
        if gain is not None:
            return gain < 0
        return one.loss > other.loss and surely_differ(*map(Evidence.of_means, (one.losses, other.losses)))

    def _sure_gain(self, one: ValidationScore, other: ValidationScore) -> float | None:
        """By how much the metric is better; None: there is none, or chance moves it as much."""
        name = self.metric
        if name is None or one.metric is None or other.metric is None:
            return None
        gain = one.metric - other.metric
        gain = gain if self._case.metrics.facts(name).better == "higher" else -gain
        return gain if gain and surely_differ(one.evidence, other.evidence) else None

    def _metric(self) -> str | None:
        metrics = self._case.metrics
        if not (metrics.fed_by(self._case.calibration) and metrics.judges_parts and self._networks.gives_all_outputs):
            return None
        wanted = self._case.config.evaluation.gate.metric
        return wanted if wanted in {metric.name for metric in metrics.spec.metrics} else metrics.primary

    def _batches(self) -> Iterator[Minibatch]:
        size = self._samples.fixed_batch or self._networks.largest_part(min(_BATCH, math.ceil(self.samples / _BATCHES)))
        for piece in self._samples.minibatches(self._numbers, size, fill=True):
            yield self._samples.batch(piece)

    def _as_stored(self, batch: Minibatch) -> SampleBatch:
        labels = self._case.calibration.labels
        known = None if labels is None else labels[batch.numbers]
        return SampleBatch(batch.feeds, known, batch.numbers[: batch.valid].tolist(), batch.arrays, batch.size)
