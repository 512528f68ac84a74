"""What of a planned graph is trained, where tensors are rounded, and normalizations to be folded into weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from worker.quantizer.autodiff.program import Program
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import CONVOLUTIONS, LinearNode, linear_view
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.grids import scale_of_channel
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.rules.functions import gains
from worker.quantizer.plan.types import BiasPlan, QuantizationPlan, WeightPlan

_ROUNDED, _HELD, _MOVED = "\0rounded", "\0held", "\0moved"


@dataclass(frozen=True)
class BiasRounding:
    """How a bias is rounded."""

    grid: IntegerGrid  # as the plan has it
    # of the activation whose scale is a factor of the grid's; None: the grid is the bias's own
    source: str | None = None
    weight: str | None = None  # the initializer whose scale is the other one
    scale_of_channel: np.ndarray | None = None  # int [channels]: which of the weight's scales each channel has


@dataclass(frozen=True)
class TrainedParameter:
    """A parameter where a node reads it."""

    key: str  # what the operand is called
    name: str  # of the initializer
    node: ir.Node  # that reads it
    index: int  # of the node's input
    now: Parameter  # the parameter as the plan has it
    weight: WeightPlan | None = None  # its entry in the plan; None for a bias or a float
    bias: BiasRounding | None = None  # how it is rounded; None for anything but a bias with a grid


class OperandNames:
    """Names the operands of a graph's nodes."""

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan) -> None:
        self._graph, self._plan = graph, plan
        self._parameters = Parameters(graph, plan)
        self._values = {name_of(value): value for value in _activations(graph)}
        self._gains = {node_name(node) for node in gains(graph)}
        self._tied = {name for entry in plan.weights.values() if entry.tied for name in (entry.initializer, entry.tied)}
        self.held: dict[str, TrainedParameter] = {}  # the parameters that were named, by key
        # constants that the plan has in the place of initializers, float32 as their grids represent them, by key
        self.moved: dict[str, np.ndarray] = {}

    def key(self, node: ir.Node, index: int, value: ir.Value) -> str:
        """What an operand is called: a parameter, a rounded activation, or the tensor itself."""
        name = name_of(value)
        now = self._parameters.of(node, index)
        if now is None:
            return name + _ROUNDED if self._reads_rounded(node, value) else name
        bias = self._plan.biases.get(node_name(node)) if index == 2 else None
        if self._is_trained(node, index, now, bias):
            key = f"{name}{_HELD} by {node_name(node)}" if bias is not None else name + _HELD
            if key not in self.held:
                weight = self._plan.weights.get(name) if self._parameters.is_stored(node, index) else None
                self.held[key] = TrainedParameter(key, name, node, index, now, weight, self._bias(node, now, bias))
            return key
        if now.grid is None and now.values is now.original:
            return name
        self.moved[name + _MOVED] = now.present
        return name + _MOVED

    def result(self, name: str) -> str:
        """What a tensor that is handed out is called: rounded, as ``emit`` hands it out."""
        value = self._values.get(name)
        if value is None or name not in self._plan.activations:
            return name
        outside = value.is_graph_output() and not self._made_on_integers(value)
        return name if outside else name + _ROUNDED

    def rounded(self, name: str) -> str | None:
        """What an activation is called once it is rounded; None if it is not planned."""
        return name + _ROUNDED if name in self._plan.activations else None

    def source(self, tensor: str) -> str:
        """What shares the learned grid of an activation: its source, unless the grids differ."""
        entry = self._plan.activations[tensor]
        first = self._plan.activations.get(entry.source)
        same = first is not None and first.quantization == entry.quantization
        return entry.source if same or first is None else tensor

    def rank(self, tensor: str) -> int:
        """Number of axes of an activation."""
        shape = self._values[tensor].shape
        return 1 if shape is None else len(shape)

    def title(self, parameter: TrainedParameter) -> str:
        """What a parameter is called: as its initializer; a bias that preparation has made, after its weight."""
        weight = parameter.node.inputs[1] if parameter.index == 2 else None
        path, dot, last = ("" if weight is None else name_of(weight)).rpartition(".")
        title = f"{path}{dot}bias"
        is_made = last == "weight" and "." not in parameter.name and title not in self._graph.initializers
        return title if is_made else parameter.name

    def maker(self, tensor: str) -> str:
        """What an activation is called: as the node that makes it; an input, or one of several results, by itself."""
        producer = self._values[tensor].producer()
        return tensor if producer is None or len(producer.outputs) > 1 else node_name(producer)

    def renew_biases(self, plan: QuantizationPlan) -> None:
        """Take over the grids that biases have in another plan for the same graph."""
        for key, parameter in self.held.items():
            entry = plan.biases.get(node_name(parameter.node)) if parameter.bias is not None else None
            if parameter.bias is not None and entry is not None and entry.quantization is not None:
                self.held[key] = replace(parameter, bias=replace(parameter.bias, grid=entry.quantization))

    def _reads_rounded(self, node: ir.Node, value: ir.Value) -> bool:
        if name_of(value) not in self._plan.activations:
            return False
        return self._made_on_integers(value) or self._has_role(node)

    def _made_on_integers(self, value: ir.Value) -> bool:
        producer = value.producer()
        return producer is not None and self._has_role(producer)

    def _has_role(self, node: ir.Node) -> bool:
        entry = self._plan.nodes.get(node_name(node))
        return entry is not None and entry.rounds

    def _is_trained(self, node: ir.Node, index: int, now: Parameter, bias: BiasPlan | None) -> bool:
        if now.original.dtype != np.float32 or now.original.size == 0:
            return False
        if self._parameters.is_stored(node, index) and name_of(node.inputs[index]) in self._tied:  # type: ignore[arg-type]
            return False  # a table and the layer that reads it would no longer be one tensor in the file
        planned = bias is not None or self._parameters.is_stored(node, index) or node_name(node) in self._gains
        return (planned and now.original.size > 1) or index in operator(node.op_type).trained

    def _bias(self, node: ir.Node, now: Parameter, entry: BiasPlan | None) -> BiasRounding | None:
        if entry is None or not isinstance(now.grid, IntegerGrid):
            return None
        if entry.spec.dtype != "int32":
            return BiasRounding(now.grid)
        read, weight = node.inputs[0], node.inputs[1]
        planned = None if weight is None else self._plan.weights.get(name_of(weight))
        if read is None or planned is None or not isinstance(planned.quantization, IntegerGrid):
            return None
        channels = scale_of_channel(node, planned, now.original.size, planned.quantization.scale.size)
        return BiasRounding(now.grid, self.source(name_of(read)), planned.initializer, channels)


def _activations(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in graph.inputs if constant(value) is None)
    for node in graph:
        yield from (value for value in node.outputs if value.name)


# Batch normalization in a training whose network has none left: convolutions are normalized by their batches again.
#
# A folded convolution y = W x + b is seen as a convolution u = W x and a normalization (u - mean) gamma / sigma + beta,
# where sigma = sqrt(variance + epsilon). With the mean and the variance that u has in the float network, gamma = sigma
# and beta = mean + b it computes what it did. From then on it is trained as Krishnamoorthi 2018, Quantizing deep
# convolutional networks for efficient inference (arXiv 1806.08342), section 3.2.2, proposes: weights are folded with
# the running statistics before they are rounded, so that they do not jump from batch to batch, and the result is
# corrected to the statistics of the batch. At the end of the training, and wherever the network is measured or written,
# weights and biases are folded with the running statistics alone.

# What is added to a variance, in parts of the mean variance of the layer's channels: folded layers have any scale.
_EPSILON = 1e-5
_MOMENTUM = 0.1
# Below this part of sigma gamma leaves too little of a channel on the grid to tell the statistics of u by.
_LEAST_FACTOR = 1e-3
# The running statistics hold for this last part of the training.
_FROZEN_FROM = 2 / 3


def is_frozen(step: int, total: int) -> bool:
    """True if batches are no longer normalized in a step: in the last third of the training.

    Steps count from 0.
    """
    return step >= math.ceil(_FROZEN_FROM * total)


@dataclass(frozen=True)
class FoldedConvolution:
    """A convolution that can be normalized."""

    weight: TrainedParameter  # where it reads its weight
    bias: TrainedParameter  # where it reads its bias
    view: LinearNode  # of the node

    @property
    def result(self) -> str:
        """Name of what it makes, [n, out, ...]."""
        return name_of(self.weight.node.outputs[0])


def folded_convolutions(trained: Mapping[str, TrainedParameter]) -> list[FoldedConvolution]:
    """The convolutions whose weight lies on an integer grid and whose weight and bias no other node reads.

    One without a bias never had a normalization: there is nothing that one could be folded into.
    """
    biases = {parameter.node: parameter for parameter in trained.values() if parameter.index == 2}
    found = []
    for parameter in trained.values():
        bias, view = biases.get(parameter.node), linear_view(parameter.node)
        on_integers = parameter.weight is not None and isinstance(parameter.now.grid, IntegerGrid)
        is_kernel = parameter.index == 1 and parameter.node.op_type in CONVOLUTIONS
        if not on_integers or not is_kernel or bias is None or view is None:
            continue
        if bias.now.original.size == view.out_channels and not _is_shared(parameter) and not _is_shared(bias):
            found.append(FoldedConvolution(parameter, bias, view))
    return found


def _is_shared(parameter: TrainedParameter) -> bool:
    value = parameter.node.inputs[parameter.index]
    return value is None or len(value.uses()) > 1 or value.is_graph_output()


class ChannelStatistics:
    """Mean and variance of each channel over all samples and places, gathered part by part (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self._squares: Tensor = torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Take in [n, channels, ...]."""
        flat = values.double().transpose(0, 1).flatten(1)
        count = flat.shape[1]
        variance, mean = torch.var_mean(flat, dim=1, correction=0)
        squares = variance * count
        if self.count == 0:
            self.count, self.mean, self._squares = count, mean, squares
            return
        both, apart = self.count + count, mean - self.mean
        self._squares = self._squares + squares + apart.square() * (self.count * count / both)
        self.mean = self.mean + apart * (count / both)
        self.count = both

    @property
    def variance(self) -> Tensor:
        """float64 [channels], over the count."""
        return self._squares / max(self.count, 1)


@torch.no_grad()
def measure(
    graph: ir.Graph, found: Iterable[FoldedConvolution], parts: Iterable[Mapping[str, Tensor]], device: torch.device
) -> dict[str, ChannelStatistics]:
    """The moments of what convolutions make in the float network, their biases included.

    ``parts`` are feeds by input name, [n, ...]; the moments are by name of the result.
    """
    moments = {layer.result: ChannelStatistics() for layer in found}
    program = Program(graph, device=device, wanted=tuple(moments))
    for feeds in parts:
        for name, values in program({name: feeds[name] for name in program.inputs}).items():
            moments[name].add(values)
    return moments


class Normalization(nn.Module):
    """The normalization that one convolution is thought to have.

    ``moments`` are of what it makes in the float network, with its bias there; ``bias``, [out], is the one that it is
    trained from.
    """

    mean: Tensor  # [out], running, of u = W x
    variance: Tensor  # likewise
    epsilon: Tensor  # [], added to variances
    channels: Tensor  # the output channel that each element of the weight belongs to; broadcasts against it

    def __init__(self, layer: FoldedConvolution, moments: ChannelStatistics, bias: Tensor) -> None:
        super().__init__()
        device = bias.device
        original = torch.from_numpy(np.array(layer.bias.now.original, np.float64).reshape(-1)).to(device)
        usual = float(moments.variance.mean())
        self.register_buffer("mean", (moments.mean - original).float())
        self.register_buffer("variance", moments.variance.float())
        self.register_buffer("epsilon", torch.tensor(_EPSILON * (usual or 1.0), dtype=torch.float32, device=device))
        self.gamma = nn.Parameter(self.sigma().clone())  # [out]
        self.beta = nn.Parameter(self.mean + bias.detach().reshape(-1))  # [out]
        channels = layer.view.along_outputs(np.arange(layer.view.out_channels))
        self.register_buffer("channels", torch.from_numpy(channels.copy()).to(device), persistent=False)

    def sigma(self) -> Tensor:
        """[out]: square root of the running variance and epsilon."""
        return torch.sqrt(self.variance + self.epsilon)

    def factor(self) -> Tensor:
        """Gamma / sigma such that it broadcasts against the weight: the folded weight over the weight."""
        return (self.gamma / self.sigma())[self.channels]

    def bias(self) -> Tensor:
        """[out]: the folded bias, beta - gamma mean / sigma."""
        return self.beta - self.gamma * (self.mean / self.sigma())

    def forward(self, made: Tensor) -> Tensor:
        """Normalize by the batch, and let the running statistics follow.

        With c the convolution by the rounded folded weight, u = c sigma / gamma has the statistics of the batch, and
        the result is c sigma / sigma_batch + beta - gamma mean_batch / sigma_batch. A batch that is cut into parts is
        normalized part by part. One sample alone is normalized by the running statistics.

        Args:
            made: c, [n, out, ...], without a bias.

        Returns:
            float32, of the same shape.
        """
        values = made.float()  # autocast may give less
        along = [-1 if axis == 1 else 1 for axis in range(values.dim())]
        if len(values) < 2:
            return values + self.bias().reshape(along)
        over = [axis for axis in range(values.dim()) if axis != 1]
        variance, mean = torch.var_mean(values, dim=over, correction=0)
        factor = self.gamma / self.sigma()
        # in terms of c nothing is divided by gamma, which may come near 0
        deviation = torch.sqrt(variance + self.epsilon * factor.square())
        slope = self.gamma.abs() / deviation
        self._follow(mean.detach(), variance.detach(), factor.detach(), values.numel() // values.shape[1])
        return values * slope.reshape(along) + (self.beta - mean * slope).reshape(along)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, factor: Tensor, count: int) -> None:
        """Running statistics of u, the variance without bias, as those of PyTorch."""
        told = factor.abs() > _LEAST_FACTOR
        safe = torch.where(told, factor, torch.ones_like(factor))
        unbiased = variance * (count / max(count - 1, 1)) / safe.square()
        self.mean.copy_(torch.where(told, self.mean.lerp(mean / safe, _MOMENTUM), self.mean))
        self.variance.copy_(torch.where(told, self.variance.lerp(unbiased, _MOMENTUM), self.variance))
