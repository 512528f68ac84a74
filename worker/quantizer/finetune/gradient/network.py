"""A unit in torch, and its samples where torch computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from worker.quantizer.autodiff.device import as_tensor
from worker.quantizer.autodiff.grids import TorchGrid
from worker.quantizer.finetune.gradient.operators import UNIT_COMPUTE
from worker.quantizer.finetune.reconstruction.unit import Operation, Samples, Unit, UnsupportedUnitError
from worker.quantizer.ops.table import operator

# A GPU keeps the samples if they take no more than this part of its free memory.
_PART_OF_DEVICE = 0.5


class Network:
    """A unit as a function of its inputs and its parameters.

    Args:
        unit: its operators are all known.
        device: where constants live.

    Raises:
        UnsupportedUnitError: an operator is not known.
    """

    def __init__(self, unit: Unit, device: torch.device) -> None:
        self._unit = unit
        self._device = device
        self._constants = {
            name: as_tensor(array, device) for name, array in unit.constants.items() if array.dtype == np.float32
        }
        self._steps = [(operation, self._attributes(operation)) for operation in unit.operations]
        self._limits = self._take_limits()
        self._grids: dict[str, TorchGrid] = {}

    def __call__(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
        """The unit's output before ``limit``: Relu and Clip, where they come last, are left to the caller.

        A target lies within the limits. So wherever the output is cut off the error points back inside, and its
        gradient is passed through the limit as if there were none (see ``clip_inward``).

        Args:
            inputs: by tensor name, float32 [n, ...].
            parameters: by tensor name, as the unit is to compute with them.
        """
        known = {**self._constants, **parameters, **inputs}
        for operation, attributes in self._steps:
            read = [None if not name else known[name] for name in operation.inputs]
            made = cast(Tensor, UNIT_COMPUTE[operation.op_type](attributes, *read))
            if operation.output in self._unit.grids:
                made = self._grid(operation.output, made).through(made)
            known[operation.output] = made
        return known[self._steps[-1][0].output]

    def limit(self, made: Tensor) -> Tensor:
        """The unit's output, from what the call gave."""
        return made if self._limits is None else made.clamp(*self._limits)

    def _take_limits(self) -> tuple[float, float] | None:
        last, attributes = self._steps[-1]
        if not operator(last.op_type).limits or last.output in self._unit.grids or len(self._steps) == 1:
            return None
        self._steps.pop()
        return (0.0, math.inf) if last.op_type == "Relu" else (attributes["low"], attributes["high"])

    def _grid(self, tensor: str, made: Tensor) -> TorchGrid:
        if tensor not in self._grids:
            shape = (-1, *made.shape[1:])
            self._grids[tensor] = TorchGrid(self._unit.grids[tensor].at_run_time(), shape, self._device)
        return self._grids[tensor]

    def _attributes(self, operation: Operation) -> dict[str, Any]:
        """The node's attributes; a Clip's limits as numbers."""
        if operation.op_type not in UNIT_COMPUTE:
            raise UnsupportedUnitError(operation.op_type)
        limits = {}
        if operation.op_type == "Clip":
            limits = {"low": self._limit(operation, 1, -math.inf), "high": self._limit(operation, 2, math.inf)}
        return {**operation.attributes, **limits}

    def _limit(self, operation: Operation, index: int, default: float) -> float:
        name = operation.inputs[index] if len(operation.inputs) > index else None
        if name is None:
            return default
        if name not in self._unit.constants:
            raise UnsupportedUnitError("Clip with limits that are not constant")
        return float(np.asarray(self._unit.constants[name]).reshape(()))


def channel_axis(unit: Unit) -> int:
    """Axis of the output that the loss sums over: the channels."""
    return 1 if any(operator(operation.op_type).channel_axis == 1 for operation in unit.operations) else -1


class Cached:
    """The samples of a unit, images with their channels last, on the device if there is room.

    Args:
        samples: in memory or mapped from disk.
        device: where the unit computes.
        mixed: the float inputs are needed too.
    """

    def __init__(self, samples: Samples, device: torch.device, *, mixed: bool) -> None:
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
