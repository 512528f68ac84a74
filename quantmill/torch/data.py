"""Any loader becomes an .npz file, batch by batch: no more than one batch is in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quantmill.columns import Columns
from quantmill.running import output_path
from quantmill.torch.errors import ExampleInputsError, LoaderError
from quantmill.torch.export import Exported, Input
from quantmill.torch.verification import to_numpy
from service.contracts.arguments import checked
from service.contracts.compatibility import can_feed
from service.contracts.dataset import DEFAULT_LABELS, InputSpec, PreprocessingSpec
from service.contracts.errors import EmptyDatasetError

_BATCH_HINT = (
    "A batch is a tensor, a tuple of the module's inputs with the labels behind them where there are any, or a dict by "
    "the names of forward's parameters with the labels under 'labels'."
)


@dataclass(frozen=True)
class Stored:
    """A dataset on disk.

    Attributes:
        path: .npz.
        samples: how many.
        preprocessing: which arrays feed which inputs, where that does not go without saying.
    """

    path: Path
    samples: int
    preprocessing: PreprocessingSpec


@checked
def store(
    loader: Iterable[Any], exported: Exported, path: str | Path, *, role: str = "loader", limit: int | None = None
) -> Stored:
    """Write what ``loader`` gives to ``path``.

    What has no axis of samples is stored once per sample, so that a sample is a whole input.

    Args:
        loader: gives batches: a tensor, a tuple (inputs, then labels if there is one more), or a dict by names.
        exported: whose inputs are fed.
        path: .npz; its folder holds the arrays one by one meanwhile.
        role: the loader in words.
        limit: stop after the batch in which so many samples are reached.

    Raises:
        LoaderError: ``loader`` is a path, or a batch does not fit the inputs or the batches before it; names the batch.
        EmptyDatasetError: there is no sample.
    """
    path = output_path(path, "data.npz")
    if isinstance(loader, str | bytes | Path) or not isinstance(loader, Iterable):
        raise LoaderError(f"Expected batches, got a {type(loader).__name__}.", hint=_BATCH_HINT)
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".quantmill-") as folder:
        columns = _Columns(Path(folder))
        for number, batch in enumerate(loader):
            _add(batch, exported, columns, f"batch {number} of the {role}", number)
            if limit is not None and columns.samples >= limit:
                break
        if not columns.samples:
            raise EmptyDatasetError(
                f"the {role} gives no samples",
                hint="Give one that holds at least one batch; an iterator can be read only once.",
            )
        columns.pack(path)
    return Stored(path, columns.samples, _preprocessing(exported, labelled=columns.labelled))


def _add(batch: Any, exported: Exported, columns: _Columns, what: str, number: int) -> None:
    """Append one batch to ``columns``."""

    def fail(detail: str) -> LoaderError:
        return LoaderError(f"{what}: {detail}", hint=_BATCH_HINT, batch=number)

    values, labels = _parted(batch, exported.call.slots)
    try:
        tensors = exported.call.from_slots(values)
    except ExampleInputsError as error:
        raise fail(error.detail) from None
    sampled = exported.sampled
    arrays = {}
    for entry, tensor in zip(exported.inputs, tensors.values(), strict=True):
        arrays[entry.name] = _numbers(tensor, f"input {entry.name!r}", fail)
        _check(arrays[entry.name], entry, entry.name in sampled, fail)
    lengths = {len(array) for name, array in arrays.items() if name in sampled}
    if len(lengths) > 1:
        raise fail(f"its inputs hold {' and '.join(map(str, sorted(lengths)))} samples")
    samples = next(iter(lengths), 1)
    arrays = {
        name: array if name in sampled else np.broadcast_to(array, (samples, *array.shape))
        for name, array in arrays.items()
    }
    if labels is not None:
        stored = _numbers(labels, "what follows the inputs, the labels,", fail)
        if stored.ndim == 0 or len(stored) != samples:
            raise fail(f"it holds labels of shape {list(stored.shape)} for {samples} samples")
        arrays[_label_name(exported)] = stored
    try:
        columns.add(arrays, labelled=labels is not None)
    except ValueError as error:
        raise fail(str(error)) from None


def _parted(batch: Any, slots: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """The inputs by slot, and the labels or None; whether they fit is not judged."""
    labels = None
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Mapping):
        batch, labels = batch
    if isinstance(batch, Mapping):
        values = {str(name): value for name, value in batch.items()}
        if labels is None and DEFAULT_LABELS not in slots:
            labels = values.pop(DEFAULT_LABELS, None)
        return values, labels
    items = list(batch) if isinstance(batch, tuple | list) else [batch]
    if len(items) == len(slots) + 1:
        *items, labels = items
    return {slots[k] if k < len(slots) else f"value {k}": item for k, item in enumerate(items)}, labels


def _check(array: np.ndarray, entry: Input, sampled: bool, fail: Callable[[str], LoaderError]) -> None:
    wanted = to_numpy(torch.empty(0, dtype=entry.dtype)).dtype.name
    if not can_feed(array.dtype.name, wanted, InputSpec()):
        raise fail(f"input {entry.name!r} is {array.dtype.name}, the module takes {wanted}")
    first = 1 if sampled else 0
    if array.ndim != len(entry.shape) or array.shape[first:] != entry.shape[first:]:
        wanted_shape = ["samples"] * first + [str(length) for length in entry.shape[first:]]
        raise fail(
            f"input {entry.name!r} has shape {list(array.shape)}, the module was exported for "
            f"[{', '.join(wanted_shape)}]"
        )


def _numbers(value: Any, what: str, fail: Callable[[str], LoaderError]) -> np.ndarray:
    try:
        array = to_numpy(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise fail(f"{what} cannot be stored: {error}") from None
    if array.dtype.kind not in "biuf":
        raise fail(f"{what} is of type {type(value).__name__}, not a tensor of numbers")
    return array


class _Columns(Columns):
    """Columns, all with labels or all without.

    Attributes:
        labelled: the batches bring labels.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.labelled = False

    def add(self, arrays: Mapping[str, np.ndarray], *, labelled: bool) -> None:
        """Append one batch.

        Raises:
            ValueError: it differs from the batches before it in what it holds; says how.
        """
        if self.samples and labelled != self.labelled:
            words = ("has labels", "has none") if labelled else ("has no labels", "has some")
            raise ValueError(f"it {words[0]}, the batch before it {words[1]}")
        self.labelled = labelled
        self.append(arrays)


def _label_name(exported: Exported) -> str:
    """What the labels are called in the file: 'labels', unless an input is."""
    taken = {entry.name for entry in exported.inputs}
    return next(name for name in (DEFAULT_LABELS, "classes", "labels_") if name not in taken)


def _preprocessing(exported: Exported, *, labelled: bool) -> PreprocessingSpec:
    """Nothing is said but where an input is called 'labels': that is not what it holds."""
    names = [entry.name for entry in exported.inputs]
    if DEFAULT_LABELS not in names:
        return PreprocessingSpec()
    inputs = {name: InputSpec(array=name) for name in names}
    return PreprocessingSpec(inputs=inputs, labels=_label_name(exported) if labelled else None)
