"""What is fed through the module while it is calibrated, call by call on disk."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from quantmill.torch.nndct.errors import QuantInfoError
from service.contracts.config import QuantizationConfig
from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.refine.draft import Draft
from worker.quantizer.statistics.observers import Range, RangeObserver
from worker.quantizer.statistics.ranges import find_ranges, range_observer
from worker.quantizer.training.twin import Twin


class Recorder:
    """Arguments of calls, one file per call in a folder that goes with this object. Memory holds none of them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="quantmill-")
        self.calls = 0

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of one call."""
        held = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().cpu().clone(), (args, kwargs))
        torch.save(held, self._path(self.calls))
        self.calls += 1

    def batches(self, signature: inspect.Signature) -> Iterator[Any]:
        """The arguments as a loader gives batches: tuples, or dicts by parameter names.

        Args:
            signature: of ``forward``.
        """
        for number in range(self.calls):
            args, kwargs = torch.load(self._path(number), weights_only=True)
            yield dict(signature.bind(*args, **kwargs).arguments) if kwargs else tuple(args)

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number:08}.pt"


class CalibrationModel(nn.Module):
    """The float module, which records what it is called with.

    It gives what the float module gives: an accuracy taken from it says nothing of the quantized one, unless
    ``standing_in`` lets the quantized one take its place for a while.

    Args:
        module: in eval mode.
        recorder: takes the arguments of all calls.
    """

    _stand_in: Callable[..., Any] | None = None

    def __init__(self, module: nn.Module, recorder: Recorder) -> None:
        super().__init__()
        self.module = module
        self.recorder = recorder

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, without gradients, and keep the arguments; or run what stands in, and keep nothing."""
        if self._stand_in is not None:
            return self._stand_in(*args, **kwargs)
        with torch.no_grad():
            result = self.module(*args, **kwargs)
        self.recorder.add(args, kwargs)
        return result

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Another recorder takes the arguments for a while."""
        before, self.recorder = self.recorder, recorder
        try:
            yield
        finally:
            self.recorder = before

    @contextmanager
    def standing_in(self, quantized: Callable[..., Any]) -> Iterator[None]:
        """Another module of the same signature is run in the place of this one for a while."""
        object.__setattr__(self, "_stand_in", quantized)  # not one of its parts
        try:
            yield
        finally:
            object.__setattr__(self, "_stand_in", None)


# Warm-up: ranges of activations from the first samples that training lets through, and positions of a calibration.

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
            raise QuantInfoError(f"{name!r} has no values", hint="Export the module again.")
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
