"""What is fed through the module while it is calibrated, call by call on disk."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


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
