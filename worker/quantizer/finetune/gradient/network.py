"""A block in torch, and its samples where torch computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from worker.quantizer.autodiff.grids import TorchGrid
from worker.quantizer.autodiff.operators import COMPUTE_INWARD
from worker.quantizer.autodiff.program import Program, as_tensor
from worker.quantizer.finetune.blocks import Block, BlockSamples, BlockState
from worker.quantizer.graph.values import activation_limits, name_of
from worker.quantizer.ops.table import operator

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
