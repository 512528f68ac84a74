"""Warm-up: ranges of activations from the first samples that training lets through, and positions of a calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantmill.torch.nndct.errors import QuantInfoError
from service.contracts.config import QuantizationConfig
from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.refine.draft import Draft
from worker.quantizer.statistics.observers import Range, RangeObserver
from worker.quantizer.statistics.ranges import find_ranges, range_observer
from worker.quantizer.training.twin import Twin

Entries = Sequence[Sequence[float]]


class WarmUp:
    """Collects activations of the network without rounding, and gives all grids of activations by what it has seen.

    Args:
        twin: the network.
        draft: its plan tells which tensors have which method of calibration.
        config: resolved.
        samples: how many there will be.
    """

    def __init__(self, twin: Twin, draft: Draft, config: QuantizationConfig, samples: int) -> None:
        self._twin, self._config = twin, config
        self._reducers: dict[str, RangeObserver] = {
            tensor: range_observer(spec, samples=samples) for tensor, spec in draft.plan.sources().items()
        }

    def see(self, feeds: Mapping[str, Tensor], samples: int, *, threads: int) -> None:
        """Take in one batch, and move the grids.

        Args:
            feeds: inputs by name.
            samples: that they hold.
            threads: CPU threads.

        Raises:
            EngineError: an activation is not finite; names the tensor.
        """

        def take(name: str, tensor: Tensor) -> None:
            observer = self._reducers.get(name)
            if observer is not None and tensor.numel():
                observer.update(tensor.detach().float().cpu().numpy(), samples)

        self._twin.observe(feeds, take)
        ranges = _of_the_first_process(find_ranges(self._reducers, threads=threads))
        draft = self._twin.write()
        fill_activations(draft.graph, draft.plan, ranges)
        self._twin.follow(draft.on_target(self._config))


def _of_the_first_process(ranges: dict[str, Range]) -> dict[str, Range]:
    """The same ranges in all processes that train together."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ranges
    held: list[Any] = [ranges]
    torch.distributed.broadcast_object_list(held, src=0)
    found: dict[str, Range] = held[0]
    return found


def at_positions(draft: Draft, document: Mapping[str, Any]) -> Draft:
    """The draft with its activations and weights on the scales that quant_info.json gives them.

    Args:
        draft: filled, on integer grids.
        document: of ``quant_info.read``, for the same graph.

    Raises:
        QuantInfoError: a tensor is missing, or has another type there.
    """
    plan = draft.plan.copy()
    activations = {**document["output"], **document["input"]}
    for tensor, activation in plan.activations.items():
        entries = activations.get(tensor, activations.get(activation.source))
        activation.quantization = _moved(tensor, activation.quantization, entries)
    for name, weight in plan.weights.items():
        grid = _moved(name, weight.quantization, document["param"].get(name))
        array = draft.graph.initializers[name].const_value
        if array is None:
            raise QuantInfoError(f"{name!r} has no values", hint="Export the module anew.")
        weight.quantization, weight.integers = grid, grid.quantize(array.numpy())
    return replace(draft, plan=plan)


def _moved(name: str, grid: Any, entries: Entries | None) -> IntegerGrid:
    """``grid`` with the scales and zero points of ``entries``: [bits, position] or [bits, scale, zero point] each."""
    if not isinstance(grid, IntegerGrid) or entries is None:
        raise QuantInfoError(
            f"quant_info.json does not say how {name!r} is quantized",
            hint="Run torch_quantizer in mode 'calib' with the same module and target.",
        )
    bits = NUMBER_TYPES[grid.dtype].bits
    if len(entries) != grid.scale.size or any(entry[0] != bits for entry in entries):
        raise QuantInfoError(
            f"{name!r} has {grid.scale.size} scales and {bits} bits here, in quant_info.json {list(entries)[:3]}",
            hint="Give both the same bit width and target.",
        )
    scales = [2.0 ** -entry[1] if len(entry) == 2 else entry[1] for entry in entries]
    zeros = [0 if len(entry) == 2 else entry[2] for entry in entries]
    return replace(
        grid,
        scale=np.asarray(scales, np.float32).reshape(grid.scale.shape),
        zero_point=np.asarray(zeros, grid.zero_point.dtype).reshape(grid.zero_point.shape),
    )
