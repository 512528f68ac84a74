"""Stored samples -> model inputs: layout, order of channels, ``(x * scale - mean) / std``, the model's dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from service.contracts.compatibility import can_feed, fed_shape
from service.contracts.dataset import COLOURS, InputSpec
from service.contracts.errors import DatasetMismatchError
from service.contracts.model import TensorInfo
from worker.quantizer.data.stored import Array

# Computing block by block keeps the float64 intermediate in the cache.
_BLOCK_ELEMENTS = 64 << 10


def model_dtype(tensor: TensorInfo) -> np.dtype[Any]:
    """The numpy dtype of a model input.

    Raises:
        DatasetMismatchError: the input takes strings, sequences or maps.
    """
    word = tensor.dtype
    try:
        dtype = np.dtype(getattr(ml_dtypes, word) if hasattr(ml_dtypes, word) else word)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind in "OSU":
        raise DatasetMismatchError(
            f"input {tensor.name!r} takes {word}; only numeric tensors can be fed from a dataset", input=tensor.name
        )
    return dtype


class Transform:
    """Makes the feed of one model input from blocks of its stored array.

    Args:
        tensor: the model input.
        spec: how its array becomes the input.
        stored: stored dtype.
        shape: stored shape, first axis = samples; None for an axis whose length differs from sample to sample.

    Raises:
        DatasetMismatchError: the layout or the per-channel values do not fit the stored shape, or the stored dtype does
            not fit the input's.
    """

    def __init__(
        self, tensor: TensorInfo, spec: InputSpec, stored: np.dtype[Any], shape: tuple[int | None, ...]
    ) -> None:
        self._dtype = model_dtype(tensor)
        self._spec = spec
        if not can_feed(stored.name, self._dtype.name, spec):
            why = "cannot be computed for it" if not spec.is_identity else "cannot feed it without losing values"
            raise DatasetMismatchError(
                f"input {tensor.name!r} takes {tensor.dtype}; stored {stored.name} {why}", input=tensor.name
            )
        fed = fed_shape(spec, shape)
        if fed is None:
            raise DatasetMismatchError(
                f"input {tensor.name!r}: layout {spec.layout} does not fit stored shape {list(shape)}",
                input=tensor.name,
            )
        if spec.channel_order == "bgr" and fed[spec.channel_axis] != COLOURS:
            raise DatasetMismatchError(
                f"input {tensor.name!r}: channel_order bgr takes {COLOURS} channels, and there are "
                f"{fed[spec.channel_axis]}",
                input=tensor.name,
            )
        self.shape = fed
        self._mean = self._per_channel("mean", spec.mean, tensor)
        self._std = self._per_channel("std", spec.std, tensor)

    def _per_channel(self, word: str, values: tuple[float, ...], tensor: TensorInfo) -> Array:
        """One value, or one per channel shaped to broadcast against a block in the model's layout."""
        if len(values) == 1:
            return np.array(values[0], np.float64)
        channels_first = self._spec.model_layout == "NCHW"
        channels = 0 if self._spec.layout is None else self.shape[self._spec.channel_axis]
        if len(values) != channels:
            told = "a varying number of" if channels is None else channels
            raise DatasetMismatchError(
                f"input {tensor.name!r}: {word} has {len(values)} values for {told} channels", input=tensor.name
            )
        column = np.array(values, np.float64)
        return column.reshape(-1, 1, 1) if channels_first else column

    def __call__(self, block: Array) -> Array:
        """Model inputs [k, ...], C-contiguous, of the model's dtype, from k stored samples."""
        view = self._reorder(block)
        if self._spec.channel_order == "bgr":
            view = np.flip(view, self._spec.channel_axis)
        if self._spec.is_identity:
            return np.ascontiguousarray(view, self._dtype)
        out = np.empty(view.shape, self._dtype)
        # Whole rows where channels come last: a loop over three channels at a time would be slow.
        mean, std = (np.tile(by, view.shape[2]) if by.ndim == 1 else by for by in (self._mean, self._std))
        step = max(1, _BLOCK_ELEMENTS // max(1, out[:1].size))
        for at in range(0, len(out), step):
            part = np.ascontiguousarray(view[at : at + step])
            rows = part.reshape(*part.shape[:2], -1) if std.ndim == 1 or mean.ndim == 1 else part
            # float64 all the way: exact, and as fast as float32 or a lookup table once the block lies in the cache
            values = np.multiply(rows, self._spec.scale, dtype=np.float64)
            values -= mean
            values /= std
            out[at : at + step] = values.reshape(part.shape)
        return out

    def _reorder(self, block: Array) -> Array:
        layout, wanted = self._spec.layout, self._spec.model_layout
        if layout is None or layout == wanted:
            return block
        if layout == "NHW":
            return block[:, np.newaxis] if wanted == "NCHW" else block[..., np.newaxis]
        return block.transpose(0, 3, 1, 2) if layout == "NHWC" else block.transpose(0, 2, 3, 1)
