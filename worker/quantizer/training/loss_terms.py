"""The terms of a training's loss, each of which is settled once on float outputs and then computed for every batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from service.contracts.algorithms.training import CrossEntropyLoss, DistillationLoss, GraphLoss, MeanSquareLoss
from service.contracts.base import below, nearest_name
from service.contracts.dataset import UNLABELLED
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation_checks import graph_feeds
from service.contracts.metrics import GraphMetric
from worker.quantizer.autodiff.operators.elementwise import TORCH_DTYPES
from worker.quantizer.autodiff.program import Program
from worker.quantizer.evaluation.metrics.base import UnfitError, fitted, squeezed
from worker.quantizer.graph.values import name_of
from worker.quantizer.training.loss_facts import FLOATS, OutputFacts, are_probabilities, class_axis

Arrays = Mapping[str | None, np.ndarray[Any, Any]]

# Quantized probabilities may be 0, whose logarithm there is none of: all of a row's classes share so much.
_PROBABILITY_FLOOR = 1e-3
# A variance below this part of the mean square is that of a constant.
_LEAST_VARIANCE = 1e-6
_HINT = "Name outputs of the model and arrays of the calibration data that belong together."


@dataclass(frozen=True)
class Tensors:
    """What one of both networks makes of the same samples: outputs and inner tensors by name, [n, ...]."""

    outputs: Mapping[str, Tensor]
    inner: Mapping[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Sequence[Tensors]) -> Tensors:
        """Several batches as one; what has no axis of samples stays as the first batch has it."""
        outputs, inner = (
            {
                name: torch.cat([part[name] for part in found]) if found[0][name].ndim else found[0][name]
                for name in found[0]
            }
            for found in ([part.outputs for part in parts], [part.inner for part in parts])
        )
        return Tensors(outputs, inner)

    def take(self, numbers: np.ndarray[Any, Any]) -> Tensors:
        """The outputs of some samples."""
        return Tensors({name: one[torch.from_numpy(numbers).to(one.device)] for name, one in self.outputs.items()})

    def cut(self, valid: int, size: int) -> Tensors:
        """Without the samples that fill up a batch of ``size``; what has no such axis of samples stays as it is."""
        if valid == size:
            return self
        outputs, inner = (
            {name: one[:valid] if one.ndim and len(one) == size else one for name, one in found.items()}
            for found in (self.outputs, self.inner)
        )
        return Tensors(outputs, inner)


def tensor_of(array: np.ndarray[Any, Any], device: torch.device | str) -> Tensor:
    """An array as a tensor; bfloat16, which numpy has no type of its own for, becomes float32."""
    known = array.astype(np.float32) if array.dtype.kind == "V" else array
    return torch.from_numpy(np.require(known, requirements=["C", "W"])).to(device)


class LossTerm(ABC):
    """One term; ``pointer`` is that of its record, below which errors point."""

    #: True if each batch needs what the float network makes of it.
    needs_teacher = False
    #: Arrays of the dataset that it reads, None being the labels.
    arrays: tuple[str | None, ...] = ()
    #: Inner tensors that it reads of both networks.
    inner: tuple[str, ...] = ()
    #: Outputs that it reads.
    read: tuple[str, ...] = ()

    def __init__(self, pointer: str, facts: OutputFacts) -> None:
        self._pointer = pointer
        self._facts = facts

    @abstractmethod
    def settle(self, teacher: Tensors, arrays: Arrays) -> list[str]:
        """Look once at float outputs of some samples; what was decided by them, in words.

        Raises:
            InvalidConfigError: an output, an inner tensor or an array does not fit.
        """

    @abstractmethod
    def value(self, student: Tensors, teacher: Tensors, arrays: Arrays) -> Tensor:
        """The term without its weight, a scalar float32.

        ``teacher`` is empty where no term needs it.
        """

    def unfit(self, place: str, told: str) -> InvalidConfigError:
        """An error that points below the record; ``place`` is a JSON pointer without its first slash."""
        return InvalidConfigError(told, pointer=f"{self._pointer}/{place}", hint=_HINT)

    def _float_output(self, name: str | None, place: str) -> str:
        """An output of floats by its name, None being the first output."""
        names = self._facts.names
        found = names[0] if name is None and names else name
        tensor = next((tensor for tensor in self._facts.outputs if tensor.name == found), None)
        if tensor is None:
            near = nearest_name(found or "", names)
            told = f"did you mean {near!r}?" if near else f"its outputs: {', '.join(map(repr, names)) or 'none'}"
            raise self.unfit(place, f"the model has no output {found!r}; {told}")
        if tensor.dtype not in FLOATS:
            raise self.unfit(place, f"output {found!r} is {tensor.dtype}, which has no gradient")
        return tensor.name

    def _array(self, name: str | None, place: str, arrays: Arrays) -> np.ndarray[Any, Any]:
        if name not in arrays:
            what = "no labels" if name is None else f"no array {name!r}"
            raise self.unfit(place, f"the calibration data has {what}")
        return arrays[name]

    def _fitted(self, array: np.ndarray[Any, Any], shape: tuple[int, ...], place: str, output: str) -> Tensor:
        try:
            return tensor_of(fitted(array, shape, place, f"output {output!r} asks for"), "cpu")
        except UnfitError as fault:
            raise self.unfit(fault.place, fault.message) from None


def scores(values: Tensor, axis: int, *, probabilities: bool) -> Tensor:
    """Logits by rows, float32 [rows, class]; of probabilities the logarithm."""
    rows = values.float().movedim(axis, -1)
    rows = rows.reshape(-1, rows.shape[-1])
    return torch.log(rows.clamp_min(0.0) + _PROBABILITY_FLOOR / rows.shape[-1]) if probabilities else rows


class CrossEntropyTerm(LossTerm):
    """Mean over all labels that count; label smoothing as of Szegedy et al. 2016, section 7.

    ``output`` is its name, and ``axis`` that of its classes once the term is settled.
    """

    def __init__(self, spec: CrossEntropyLoss, pointer: str, facts: OutputFacts) -> None:
        super().__init__(pointer, facts)
        self._spec = spec
        self.arrays = (spec.labels,)
        self.output = self._float_output(spec.output, "output")
        self.read = (self.output,)
        self._ignored = facts.ignored(self.output, spec.labels)
        self.axis = 1
        self._probabilities = False

    def settle(self, teacher: Tensors, arrays: Arrays) -> list[str]:
        """Find the class axis by the labels' shape, and whether the output holds probabilities."""
        values = _with_samples(teacher.outputs[self.output])
        labels = self._array(self._spec.labels, "labels", arrays)
        if labels.dtype.kind not in "iub":
            raise self.unfit("labels", f"the labels are {labels.dtype}; class numbers are integers")
        if self._ignored is None and labels.size == len(labels):  # one per sample
            self._ignored = UNLABELLED
        self.axis = self._class_axis(tuple(values.shape), labels.shape)
        self._labels(values, arrays)
        self._probabilities = are_probabilities(values, self.axis)
        return [f"output {self.output!r} contains probabilities: use their logarithms as scores"] * self._probabilities

    def value(self, student: Tensors, teacher: Tensors, arrays: Arrays) -> Tensor:
        """Cross-entropy in nats."""
        values = _with_samples(student.outputs[self.output])
        labels = self._labels(values, arrays).to(values.device)
        rows = scores(values, self.axis, probabilities=self._probabilities)
        wanted = labels.reshape(-1)
        counts = torch.ones_like(wanted) if self._ignored is None else wanted != self._ignored
        total = functional.cross_entropy(
            rows,
            wanted,
            ignore_index=-100 if self._ignored is None else self._ignored,
            reduction="sum",
            label_smoothing=self._spec.smoothing,
        )
        return total / counts.sum().clamp_min(1)

    def _class_axis(self, shape: tuple[int, ...], labels: tuple[int, ...]) -> int:
        """As a metric of the output sees it, else the second or the last: the first whose rest is the labels' shape."""
        known = class_axis(shape, self._facts.given_axis(self.output))
        by_metric = [known] if known is not None and self._facts.classification(self.output) is not None else []
        for axis in (*by_metric, 1, len(shape) - 1):
            rest = shape[:axis] + shape[axis + 1 :]
            if 0 < axis < len(shape) and shape[axis] > 1 and squeezed(rest) == squeezed(labels):
                return axis
        told = f"labels of shape {list(labels)} are no classes of output {self.output!r}, which has shape {list(shape)}"
        raise self.unfit("labels", told)

    def _labels(self, values: Tensor, arrays: Arrays) -> Tensor:
        """Class numbers int64, of the output's shape without the class axis.

        Raises:
            InvalidConfigError: one is no class of the output.
        """
        shape, classes = tuple(values.shape), values.shape[self.axis]
        given = self._array(self._spec.labels, "labels", arrays).astype(np.int64)
        wrong = (given < 0) | (given >= classes)
        if self._ignored is not None:
            wrong &= given != self._ignored
        if wrong.any():
            told = f"label {given[wrong][0]} is no class of output {self.output!r}, which has 0 to {classes - 1}"
            raise self.unfit("labels", told)
        return self._fitted(given, shape[: self.axis] + shape[self.axis + 1 :], "labels", self.output)


class MeanSquareTerm(LossTerm):
    """Mean over all elements, in the square of the target's unit."""

    def __init__(self, spec: MeanSquareLoss, pointer: str, facts: OutputFacts) -> None:
        super().__init__(pointer, facts)
        self._spec = spec
        self.arrays = (spec.targets,)
        self._output = self._float_output(spec.output, "output")
        self.read = (self._output,)

    def settle(self, teacher: Tensors, arrays: Arrays) -> list[str]:
        """Make sure that the targets fit."""
        self._targets(teacher.outputs[self._output], arrays)
        return []

    def value(self, student: Tensors, teacher: Tensors, arrays: Arrays) -> Tensor:
        """Mean square distance from the targets."""
        values = student.outputs[self._output]
        return functional.mse_loss(values.float(), self._targets(values, arrays).to(values.device))

    def _targets(self, values: Tensor, arrays: Arrays) -> Tensor:
        given = self._array(self._spec.targets, "targets", arrays)
        return self._fitted(given.astype(np.float32), tuple(values.shape), "targets", self._output)


@dataclass(frozen=True)
class _OutputComparison:
    """How one tensor is compared: rows of classes along ``axis``, or the mean square over ``variance``."""

    axis: int | None = None
    probabilities: bool = False
    variance: float = 1.0


class DistillationTerm(LossTerm):
    """Mean over the outputs, and the weighted mean over the inner tensors.

    Kullback-Leibler divergence is that of the float network's distribution from the quantized one's, mean over rows,
    times the temperature's square, which keeps gradients of one size (Hinton et al. 2015, section 2).

    ``labelled`` are terms that compare outputs with class labels, by output; settled before this one.
    """

    needs_teacher = True

    def __init__(
        self, spec: DistillationLoss, pointer: str, facts: OutputFacts, labelled: Mapping[str, CrossEntropyTerm]
    ) -> None:
        super().__init__(pointer, facts)
        self._spec = spec
        self._labelled = labelled
        self.inner = tuple(dict.fromkeys(spec.tensors))
        if spec.outputs is None:
            self._outputs = facts.float_outputs
        else:
            named = [self._float_output(name, f"outputs/{k}") for k, name in enumerate(spec.outputs)]
            self._outputs = tuple(dict.fromkeys(named))
        if not self._outputs and not self.inner:
            raise self.unfit("outputs", "the model has no output of floats that could be compared")
        self.read = self._outputs
        self._compared: dict[str, _OutputComparison] = {}
        self._variances: dict[str, float] = {}

    def settle(self, teacher: Tensors, arrays: Arrays) -> list[str]:
        """Choose the divergence of each output, and take the variances."""
        notes = [note for k, name in enumerate(self._outputs) for note in self._settle(k, name, teacher.outputs[name])]
        for k, name in enumerate(self.inner):
            values = teacher.inner.get(name)
            if values is None or not values.is_floating_point():
                told = "does not exist" if values is None else "contains no floats"
                raise self.unfit(f"tensors/{k}", f"the inner tensor {name!r} {told}")
            self._variances[name] = variance_of(values)
        return notes

    def value(self, student: Tensors, teacher: Tensors, arrays: Arrays) -> Tensor:
        """Distance from the float network."""
        apart = [
            self._distance(self._compared[name], student.outputs[name], teacher.outputs[name]) for name in self._outputs
        ]
        total = torch.stack(apart).mean() if apart else torch.zeros(())
        if self.inner:
            within = [
                functional.mse_loss(student.inner[name].float(), teacher.inner[name].float()) / self._variances[name]
                for name in self.inner
            ]
            total = total.to(within[0].device) + self._spec.tensors_weight * torch.stack(within).mean()
        return total

    def _settle(self, k: int, name: str, values: Tensor) -> list[str]:
        rival = self._labelled.get(name)
        axis = rival.axis if rival is not None else class_axis(tuple(values.shape), self._facts.given_axis(name))
        chosen, why = self._spec.divergence, ""
        if chosen == "auto":
            chosen, why = self._facts.choose(name, values, axis, labelled=rival is not None)
            why = f", as {why}"
        if chosen == "mse":
            self._compared[name] = _OutputComparison(variance=variance_of(values))
            return [f"output {name!r}: mean square distance over the variance{why}"] if why else []
        if axis is None or values.ndim <= axis:
            place = "divergence" if self._spec.outputs is None else f"outputs/{k}"
            raise self.unfit(place, f"output {name!r} of shape {list(values.shape)} has no scores of several classes")
        found = _OutputComparison(axis, are_probabilities(values, axis))
        self._compared[name] = found
        notes = [f"output {name!r}: Kullback-Leibler divergence{why}"] if why else []
        return notes + [f"output {name!r} contains probabilities: use their logarithms as scores"] * found.probabilities

    def _distance(self, how: _OutputComparison, student: Tensor, teacher: Tensor) -> Tensor:
        if how.axis is None:
            return functional.mse_loss(student.float(), teacher.float()) / how.variance
        temperature = self._spec.temperature
        found, wanted = (
            functional.log_softmax(scores(values, how.axis, probabilities=how.probabilities) / temperature, dim=-1)
            for values in (student, teacher)
        )
        return functional.kl_div(found, wanted, reduction="batchmean", log_target=True) * temperature**2


class GraphOnTorch:
    """A loss that is given as a graph, as a function with a derivative.

    Raises:
        NotDifferentiableError: an operator has no derivative here.
    """

    def __init__(self, model: ir.Model, device: torch.device) -> None:
        self._program = Program(model.graph, device=device)
        self._dtypes = {name_of(value): value.dtype for value in model.graph.inputs}
        self._device = device
        self._output = name_of(model.graph.outputs[0])

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""
        return tuple(self._dtypes)

    def __call__(self, feeds: Mapping[str, Tensor]) -> Tensor:
        """The scalar that the graph returns; arrays are taken into the types of its inputs."""
        cast = {name: _as(feeds[name].to(self._device), self._dtypes[name]) for name in self._program.inputs}
        return self._program(cast)[self._output]


def _as(tensor: Tensor, dtype: ir.DataType | None) -> Tensor:
    return tensor.to(TORCH_DTYPES[dtype]) if dtype in TORCH_DTYPES else tensor


class GraphTerm(LossTerm):
    """What a graph returns, fed as a metric of kind onnx is."""

    def __init__(self, spec: GraphLoss, pointer: str, facts: OutputFacts, function: GraphOnTorch) -> None:
        super().__init__(pointer, facts)
        self._function = function
        metric = GraphMetric(graph=spec.graph, inputs=spec.inputs)
        for place, ref in metric.output_refs().items():
            if isinstance(ref, int) and ref >= len(facts.names):
                raise self.unfit(place, f"the model has {len(facts.names)} outputs, no output {ref}")
            if isinstance(ref, str) and ref not in facts.names:
                raise self.unfit(place, f"the model has no output {ref!r}")
        self._feeds = graph_feeds(metric, function.inputs, facts.names)
        self.arrays = tuple(feed.name for feed in self._feeds.values() if feed.source == "array")
        self.read = tuple(
            feed.name for feed in self._feeds.values() if feed.source != "array" and feed.name is not None
        )
        self.needs_teacher = any(feed.source == "reference" for feed in self._feeds.values())

    def settle(self, teacher: Tensors, arrays: Arrays) -> list[str]:
        """Try it on the float network's outputs."""
        self.value(teacher, teacher, arrays)
        return []

    def value(self, student: Tensors, teacher: Tensors, arrays: Arrays) -> Tensor:
        """The graph's scalar."""
        device = next((values.device for values in student.outputs.values()), torch.device("cpu"))
        feeds = {}
        for name, feed in self._feeds.items():
            if feed.source == "array":
                feeds[name] = tensor_of(self._array(feed.name, below("", "inputs", name)[1:], arrays), device)
            elif feed.name is not None:
                feeds[name] = (teacher if feed.source == "reference" else student).outputs[feed.name]
        try:
            made = self._function(feeds)
        except (RuntimeError, TypeError, IndexError) as error:  # torch's words for shapes and types that do not fit
            raise self.unfit("graph", f"the graph cannot be computed on these shapes and types: {error}") from error
        if made.numel() != 1:
            raise self.unfit("graph", f"the graph returned shape {list(made.shape)}, no scalar")
        return made.reshape(()).float()


def variance_of(values: Tensor) -> float:
    """Variance over all elements; of a constant its mean square, of 0 one, so that it can be divided by."""
    wide = values.double()
    square = float(wide.square().mean())
    found = float(wide.var(correction=0))
    return found if found > _LEAST_VARIANCE * square else square or 1.0


def _with_samples(values: Tensor) -> Tensor:
    """Scores [class] of a model whose inputs have no axis of samples, as those of one sample."""
    return values[None] if values.ndim == 1 else values
