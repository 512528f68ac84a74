"""A block in torch: as a function, its samples, and what Adam moves of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from worker.quantizer.autodiff.grids import TorchGrid
from worker.quantizer.autodiff.operators import COMPUTE_INWARD
from worker.quantizer.autodiff.program import Program, as_tensor
from worker.quantizer.finetune.blocks import (
    NORM_OPERATORS,
    Block,
    BlockParameter,
    BlockSamples,
    BlockState,
    ParameterResult,
)
from worker.quantizer.graph.values import activation_limits, name_of, plain_attributes
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import LINEAR, weight_layout
from worker.quantizer.ops.table import Family, operator

# A GPU keeps the samples if they take no more than this part of its free memory.
_PART_OF_DEVICE = 0.5
_HELD = "\0held"


class BlockNetwork:
    """A block as a function of its inputs and its parameters.

    Raises:
        NotDifferentiableError: an operator has no form in torch.
    """

    def __init__(self, state: BlockState, device: torch.device) -> None:
        self._state, self._device = state, device
        self._constants = {
            name + _HELD: as_tensor(array, device)
            for name, array in state.constants.items()
            if array.dtype == np.float32
        }
        self._grids: dict[str, TorchGrid] = {}
        nodes, self._limits = self._limited()
        self._output = name_of(nodes[-1].outputs[0])
        graph = cast(ir.Graph, nodes[0].graph)
        self._program = Program(
            graph,
            device=device,
            nodes=nodes,
            wanted=(self._output,),
            operators=COMPUTE_INWARD,
            read=self._operand,
        )

    def __call__(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
        """The block's output before ``limit``: Relu and Clip, where they come last, are left to the caller.

        A target lies within the limits. So wherever the output is cut off the error points back inside, and its
        gradient is passed through the limit as if there were none (see ``clip_inward``).

        Both are by tensor name; inputs are float32 [n, ...].
        """
        held = {name + _HELD: tensor for name, tensor in parameters.items()}
        return self._program({**self._constants, **held, **inputs}, self._round)[self._output]

    def limit(self, made: Tensor) -> Tensor:
        """The block's output, from what the call gave."""
        return made if self._limits is None else made.clamp(*self._limits)

    def _limited(self) -> tuple[tuple[ir.Node, ...], tuple[float, float] | None]:
        """The nodes but for a Relu or a Clip at the end, and its limits."""
        nodes, last = self._state.block.nodes, self._state.block.nodes[-1]
        if not operator(last.op_type).limits or name_of(last.outputs[0]) in self._state.grids or len(nodes) == 1:
            return nodes, None
        limits = activation_limits(last)
        return (nodes, None) if limits is None else (nodes[:-1], limits)

    def _operand(self, node: ir.Node, index: int, value: ir.Value) -> str:
        name = name_of(value)
        return name + _HELD if name in self._state.parameters or name + _HELD in self._constants else name

    def _round(self, name: str, made: Tensor, known: dict[str, Tensor]) -> None:
        grid = self._state.grids.get(name)
        if grid is None:
            return
        if name not in self._grids:
            self._grids[name] = TorchGrid(grid.at_run_time(), (-1, *made.shape[1:]), self._device)
        known[name] = self._grids[name].through(made)


def channel_axis(block: Block) -> int:
    """Axis of the output that the loss sums over: the channels."""
    return 1 if any(operator(node.op_type).channel_axis == 1 for node in block.nodes) else -1


class DeviceSamples:
    """The samples of a block, images with their channels last, on the device if there is room.

    With ``mixed`` the float inputs are needed too.
    """

    def __init__(self, samples: BlockSamples, device: torch.device, *, mixed: bool) -> None:
        self.count = samples.count
        self._device = device
        arrays = [*samples.quantized.values(), samples.target, *(samples.floats.values() if mixed else ())]
        size = sum(array.nbytes for array in arrays)
        self.elements = sum(array[:1].size for array in arrays)
        self.outputs = samples.target.size
        resident = device.type == "cuda" and size < _PART_OF_DEVICE * torch.cuda.mem_get_info(device)[0]
        where = device if resident else torch.device("cpu")
        self._quantized = {name: _Stored(array, where) for name, array in samples.quantized.items()}
        self._floats = {name: _Stored(samples.floats[name], where) for name in self._quantized if mixed}
        self._target = _Stored(samples.target, where)

    def inputs(
        self, chosen: Tensor, drop_ratio: float = 1.0, random: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Inputs of the chosen samples; of each, a share of ``drop_ratio`` is the quantized network's.

        Element by element, drawn anew at every call (Wei et al. 2022, QDrop, section 3.3, with its probability
        reversed).
        """
        inputs = {name: stored.take(chosen, self._device) for name, stored in self._quantized.items()}
        if drop_ratio >= 1.0:
            return inputs
        floats = {name: stored.take(chosen, self._device) for name, stored in self._floats.items()}
        if drop_ratio <= 0.0:
            return floats
        return {
            name: torch.where(torch.empty_like(array).uniform_(generator=random) < drop_ratio, array, floats[name])
            for name, array in inputs.items()
        }

    def mean_square(self) -> float:
        """Of the first sample's target."""
        return float(self.target(torch.arange(1)).square().mean())

    def target(self, chosen: Tensor) -> Tensor:
        """The float network's output for the chosen samples."""
        return self._target.take(chosen, self._device)


class _Stored:
    """An array of samples: images in memory with their channels last, on disk as they lie there."""

    def __init__(self, array: np.ndarray, device: torch.device) -> None:
        self._is_image = array.ndim in (4, 5)
        self._mapped = array if isinstance(array, np.memmap) else None
        self._tensor: Tensor | None = None
        if self._mapped is None:
            tensor = as_tensor(array, torch.device("cpu"))
            self._tensor = (tensor.movedim(1, -1) if self._is_image else tensor).contiguous().to(device)

    def take(self, chosen: Tensor, device: torch.device) -> Tensor:
        """The chosen samples, float32 [n, ...], on ``device``."""
        if self._tensor is not None:
            taken = self._tensor.index_select(0, chosen.to(self._tensor.device)).to(device, non_blocking=True)
            return taken.movedim(-1, 1) if self._is_image else taken
        if self._mapped is None:
            raise ValueError("neither in memory nor on disk")
        taken = torch.from_numpy(np.asarray(self._mapped[chosen.numpy()], np.float32)).to(device)
        return taken.movedim(1, -1).contiguous().movedim(-1, 1) if self._is_image else taken


# What Adam moves, and what becomes of it: weights that are rounded softly (AdaRound), parameters that move through
# their rounding (AdaQuant); and which of several results to keep.
#
# Each turns its variables into the tensor that the block computes with, and the tensor's gradient into the variables':
# by hand, as a chain of automatic derivatives over every weight would cost more than the layer itself.

Results = Mapping[str, ParameterResult]
# The rectified sigmoid reaches 0 and 1 (Louizos et al. 2018; AdaRound equation 23).
ZETA, GAMMA = 1.1, -0.1
_SPAN = ZETA - GAMMA
# How far a variable of 1 moves what has no grid, and at least what has one of floats: parts of the mean magnitude.
_FREE_STEP, _FINEST_STEP = 0.25, 2.0**-12


class SoftRounding:
    """AdaRound's weight: s * clip(floor(W / s) + h(alpha)), h a rectified sigmoid; at the end h is 0 or 1.

    The parameter is a weight on an integer grid.
    """

    def __init__(self, parameter: BlockParameter, device: torch.device) -> None:
        grid = parameter.grid
        if not isinstance(grid, IntegerGrid):
            raise TypeError("only integers are rounded up or down")
        self._grid = grid
        values = as_tensor(parameter.values, device)
        steps = TorchGrid(grid, parameter.values.shape, device)
        quotient = values / steps.scale
        floor = torch.floor(quotient)
        self._low = torch.clamp(floor, steps.low, steps.high)
        self._high = torch.clamp(floor + 1, steps.low, steps.high)
        self._base = self._low * steps.scale
        self._step = (self._high - self._low) * steps.scale
        part = (quotient - floor).clamp(0.0, 1.0)
        self._alpha = -torch.log(_SPAN / (part - GAMMA) - 1.0)
        self._alpha.requires_grad_()
        self._sigmoid = torch.empty_like(values)
        self._h = torch.empty_like(values)

    @property
    def variables(self) -> list[Tensor]:
        """Alpha."""
        return [self._alpha]

    @torch.no_grad()
    def value(self) -> Tensor:
        """The softly rounded weight."""
        torch.sigmoid(self._alpha, out=self._sigmoid)
        torch.mul(self._sigmoid, _SPAN, out=self._h)
        self._h.add_(GAMMA).clamp_(0.0, 1.0)
        return torch.addcmul(self._base, self._step, self._h)

    @torch.no_grad()
    def absorb(self, gradient: Tensor, penalty: float = 0.0, beta: float = 2.0) -> None:
        """dL/dalpha = (dL/dW step - 2 r beta |2h-1|^(beta-1) sign(2h-1)) dh/dalpha; 0 where h is 0 or 1."""
        by_h = gradient * self._step
        if penalty:
            v = torch.mul(self._h, 2.0).sub_(1.0)
            # |v|^(beta-1) by exp and log, several times faster than pow; log 0 = -inf gives 0
            power = v.abs().log_().mul_(beta - 1.0).exp_()
            by_h.addcmul_(power, torch.sign(v), value=-2.0 * penalty * beta)
        # sigmoid' = sigmoid - sigmoid^2, and nothing passes where the rectifier holds h
        slope = torch.addcmul(self._sigmoid, self._sigmoid, self._sigmoid, value=-1.0).mul_(_SPAN)
        free = (self._h > 0.0) & (self._h < 1.0)
        self._alpha.grad = by_h.mul_(slope).mul_(free)

    def result(self) -> ParameterResult:
        """Rounded up where alpha >= 0."""
        up = self._alpha.detach() >= 0
        steps = torch.where(up, self._high, self._low).cpu().numpy()
        integers = (steps + self._grid.spread(self._grid.zero_point, steps.shape)).astype(self._grid.zero_point.dtype)
        return ParameterResult(self._grid.dequantize(integers), integers, None)


class Moving:
    """A parameter that moves in float, rounded on the way, with the gradient passed straight through.

    Args:
        parameter: with or without a grid.
        device: to compute on.
        unit: float32, broadcasts against the parameter: how far a variable of 1 moves it. None: its grid's step, or for
            floats a part of its magnitude.
        move_scale: let the scale of an integer grid follow too.
    """

    def __init__(
        self,
        parameter: BlockParameter,
        device: torch.device,
        *,
        unit: np.ndarray | None = None,
        move_scale: bool = False,
    ) -> None:
        self._shape = parameter.values.shape
        self._start = as_tensor(parameter.values, device)
        self._source = parameter.grid
        self._grid = None if parameter.grid is None else TorchGrid(parameter.grid, self._shape, device)
        step = _step(parameter) if unit is None else unit
        self._unit = as_tensor(step, device)
        self._offset = torch.zeros_like(self._start, requires_grad=True)
        self._stretch: Tensor | None = None
        self._index: Tensor | None = None
        if move_scale and isinstance(parameter.grid, IntegerGrid):
            numbers = np.arange(parameter.grid.scale.size).reshape(parameter.grid.scale.shape)
            self._stretch = torch.zeros(numbers.size, device=device, requires_grad=True)
            self._index = as_tensor(parameter.grid.granularity.spread(numbers, self._shape), device, np.int64)
        self._inside: Tensor | None = None
        self._by_scale: Tensor | None = None
        self._rounding: Tensor | None = None
        self._curvature: Tensor | None = None

    def dampen(self, curvature: Tensor) -> None:
        """Pull every value towards what it is rounded to, as strongly as the error is curved along it.

        The straight-through gradient g of a weight does not hang on where the weight is between two roundings: it
        drives it on until it flips, and then back again, even where a flip makes the error larger: by g d + h d^2 / 2
        for a step d and a curvature h. With h (v - q) added, a value v rounded to q comes to rest -g / h away from q,
        and so it flips where |g| > h d / 2 alone, which is where a flip makes the error smaller. (Nagel et al. 2022,
        Overcoming Oscillations in Quantization-Aware Training, dampen by one constant for all.)

        ``curvature`` holds second derivatives of the loss, one for each value.
        """
        self._curvature = curvature

    @property
    def variables(self) -> list[Tensor]:
        """How far it has moved, in units, and the logarithm of how much the scale has grown."""
        return [self._offset] if self._stretch is None else [self._offset, self._stretch]

    @torch.no_grad()
    def value(self) -> Tensor:
        """The parameter as its grid represents it."""
        moved = torch.addcmul(self._start, self._offset, self._unit)
        if self._grid is None:
            return moved
        if self._stretch is None or self._index is None:
            rounded, self._inside = self._grid.fake(moved)
            self._note_rounding(moved, rounded)
            return rounded
        scale = self._grid.scale * torch.exp(self._stretch)[self._index]
        quotient = moved / scale
        wide, held = self._grid.steps(quotient)
        self._inside = wide == held
        # d(s q)/ds = q - W/s inside, q where it saturates (Esser et al. 2020, Learned Step Size Quantization, eq. 3)
        self._by_scale = torch.where(self._inside, held - quotient, held) * scale
        rounded = held * scale
        self._note_rounding(moved, rounded)
        return rounded

    def _note_rounding(self, moved: Tensor, rounded: Tensor) -> None:
        if self._curvature is not None:
            self._rounding = moved - rounded

    @torch.no_grad()
    def absorb(self, gradient: Tensor, penalty: float = 0.0, beta: float = 2.0) -> None:
        """Straight through, but not where the grid ends."""
        by_value = gradient if self._inside is None else gradient * self._inside
        if self._curvature is not None and self._rounding is not None:
            by_value = torch.addcmul(by_value, self._curvature, self._rounding)
        self._offset.grad = by_value * self._unit
        if self._stretch is not None and self._index is not None and self._by_scale is not None:
            by_scale = (gradient * self._by_scale).reshape(-1)
            index = self._index.expand(self._shape).reshape(-1)
            self._stretch.grad = torch.zeros_like(self._stretch).index_add_(0, index, by_scale)

    def result(self) -> ParameterResult:
        """Rounded by the grid itself."""
        values = torch.addcmul(self._start, self._offset.detach(), self._unit).cpu().numpy()
        grid = self._source
        if grid is None:
            return ParameterResult(values, None, values)
        if not isinstance(grid, IntegerGrid):
            return ParameterResult(grid.fake(values), None, values)
        scale = None
        if self._stretch is not None:
            grown = np.exp(self._stretch.detach().cpu().numpy()).reshape(grid.scale.shape)
            scale = (grid.scale * grown).astype(np.float32)
            grid = replace(grid, scale=scale)
        integers = grid.quantize(values)
        return ParameterResult(grid.dequantize(integers), integers, values, scale)


# A parameter in the hands of Adam.
Movable = SoftRounding | Moving


def _step(parameter: BlockParameter) -> np.ndarray:
    if isinstance(parameter.grid, IntegerGrid):
        return parameter.grid.spread(parameter.grid.scale, parameter.values.shape)
    magnitude = max(float(np.abs(parameter.values).mean()), 1e-6)
    if parameter.grid is None:
        return np.asarray(magnitude * _FREE_STEP, np.float32)
    # the step of a grid that leaves this error: uniform errors have a variance of step^2 / 12
    rounding = float(np.sqrt(12.0 * np.mean(np.square(parameter.grid.fake(parameter.values) - parameter.values))))
    return np.asarray(max(rounding, magnitude * _FINEST_STEP), np.float32)


def channels_are_independent(state: BlockState) -> bool:
    """True if an output channel hangs on that channel's parameters alone: one layer, and functions of one value."""
    first, *others = state.block.nodes
    plain = all(operator(node.op_type).family in (Family.ACTIVATION, Family.EXTREMUM) for node in others)
    plain = plain and all(isinstance(grid, IntegerGrid) for grid in state.grids.values())
    if first.op_type == "LayerNormalization":
        return plain and all(parameter.values.ndim == 1 for parameter in state.parameters.values())
    return plain and first.op_type in (*LINEAR, *NORM_OPERATORS)


def choose(state: BlockState, candidates: Sequence[Results], errors: Sequence[np.ndarray]) -> tuple[Results, float]:
    """The best of the candidates, or of their channels.

    Where the channels of the output do not hang together, each takes whatever gave it the smallest error, and none gets
    worse for another's sake.

    The first candidate is what is there now; ``errors`` are float64 [channels] of each, the sum of squares. Returns the
    parameters, and the sum of their squared errors: never above the first's.
    """
    whole = min(range(len(candidates)), key=lambda k: float(errors[k].sum()))
    best, least = candidates[whole], float(errors[whole].sum())
    scales_move = any(result.scale is not None for candidate in candidates for result in candidate.values())
    if not channels_are_independent(state) or scales_move:
        return best, least
    table = np.stack(errors)
    picked = np.argmin(np.where(np.isfinite(table), table, np.inf), axis=0)
    merged = {name: _merged(state, name, [candidate[name] for candidate in candidates], picked) for name in best}
    if any(result is None for result in merged.values()):
        return best, least
    kept = {name: result for name, result in merged.items() if result is not None}
    return kept, float(table.min(axis=0).sum())


def _merged(
    state: BlockState, name: str, results: Sequence[ParameterResult], picked: np.ndarray
) -> ParameterResult | None:
    """Channel c of the ``picked[c]``-th result; None if the parameter does not have the output's channels."""
    index = _spread(state.block.nodes[0], state.parameters[name], picked)
    if index is None:
        return None

    def pick(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
        there = [array for array in arrays if array is not None]
        if len(there) < len(arrays):
            return None
        chosen = there[0].copy()
        for k, array in enumerate(there[1:], start=1):
            np.copyto(chosen, array, where=index == k)
        return chosen

    present = pick([result.present for result in results])
    if present is None:
        return None
    return replace(
        results[-1],
        present=present,
        integers=pick([result.integers for result in results]),
        values=pick([result.values for result in results]),
    )


def _spread(node: ir.Node, parameter: BlockParameter, picked: np.ndarray) -> np.ndarray | None:
    """``picked`` [channels], shaped so that it broadcasts against a parameter of the node."""
    shape = parameter.values.shape
    if parameter.kind != "weight":
        return picked.reshape(shape) if parameter.values.size == picked.size else None
    layout = weight_layout(node.op_type, shape, plain_attributes(node))
    return layout.along_outputs(picked) if layout is not None and layout.out_channels == picked.size else None
