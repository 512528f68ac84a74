"""One look at a dataset: every sample's fingerprint and extremes, and a few samples spread over all of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.contracts.costs import spread
from service.contracts.model import TensorInfo
from worker.quantizer.data import ArrayDataset, OpenDataset, choose_batch_size
from worker.quantizer.data.preprocess import Transform
from worker.quantizer.data.ragged import pieces, sample_name, told_shape
from worker.quantizer.data.stored import sample_bytes
from worker.quantizer.runtime.session import Session

Array = np.ndarray[Any, Any]

# Samples that are kept: enough for a paired test of 5 sigma at 10 percent of changed decisions.
MOST_PICKED = 256
# Bytes that are kept of them, and bytes of a dataset that are read.
_KEPT_BYTES = 32 << 20
_READ_BYTES = 1 << 30
# Samples that are read; each leaves a fingerprint.
_READ_SAMPLES = 1 << 17
_BLOCK_BYTES = 4 << 20
_RUN_BATCH = 8
# Samples that spreads and means are taken from, fewer of large ones.
_MEASURED, _FEWEST_MEASURED, _MEASURED_ELEMENTS = 32, 8, 1 << 20


@dataclass(frozen=True)
class Look:
    """What one pass over the inputs' arrays has found.

    Attributes:
        samples: of the dataset.
        seen: that were read; fewer than ``samples`` where there are too many, or too many bytes.
        fingerprints: of every sample read, over all inputs as stored.
        lows, highs: by input: smallest and largest stored value of every sample read, float64 [seen].
        picked: some samples with their labels, as a dataset of their own; the first few of them are spread over the
            whole as evenly as all are.
    """

    samples: int
    seen: int
    fingerprints: tuple[bytes, ...]
    lows: dict[str, Array]
    highs: dict[str, Array]
    picked: OpenDataset

    @property
    def distinct(self) -> int:
        """How many different samples were read."""
        return len(set(self.fingerprints))


def look_at(data: OpenDataset, inputs: Sequence[TensorInfo], *, limit: int | None = None) -> Look:
    """Read the arrays that feed the inputs once, in blocks.

    Args:
        data: calibration or evaluation data.
        inputs: the model's.
        limit: samples that are used at all; None: all.

    Raises:
        DatasetError: damaged bytes, or an input without an array.
    """
    total = data.samples if limit is None else min(limit, data.samples)
    fed = {tensor.name: data.array_for(tensor)[0] for tensor in inputs}
    sources = {array.name: array for array in fed.values()}
    row_bytes = max(1, sum(sample_bytes(a.dtype, a.shape) for a in sources.values()))
    seen = max(1, min(total, _READ_BYTES // row_bytes, _READ_SAMPLES))
    kept = max(2, min(MOST_PICKED, _KEPT_BYTES // row_bytes))
    numbers = spread(seen, kept)
    step = max(1, _BLOCK_BYTES // row_bytes)
    prints = [b""] * seen
    rows: dict[str, list[Array]] = {}
    lows, highs = {}, {}
    for name, array in sources.items():
        low, high = [], []
        rows[name] = []
        with closing(array.open()) as reader:
            for start, count in pieces([array], 0, seen, step):
                block = reader.read(count)
                flat = block.reshape(len(block), -1) if block.size else np.zeros((len(block), 1), block.dtype)
                for k, row in enumerate(flat):
                    prints[start + k] = _fingerprint(prints[start + k], row)
                low.append(flat.min(axis=1).astype(np.float64))
                high.append(flat.max(axis=1).astype(np.float64))
                rows[name].append(block[[number - start for number in numbers if start <= number < start + count]])
        lows[name], highs[name] = np.concatenate(low), np.concatenate(high)
    order = _spread_order(len(numbers))
    labels = data.labels
    spec = data.preprocessing.model_copy(update={"labels": None, "pictures": None, "sounds": None})
    return Look(
        samples=total,
        seen=seen,
        fingerprints=tuple(prints),
        lows={name: lows[array.name] for name, array in fed.items()},
        highs={name: highs[array.name] for name, array in fed.items()},
        picked=ArrayDataset(
            {key: values for name, blocks in rows.items() for key, values in _ordered(name, blocks, order)},
            None if labels is None else labels[numbers][order],
            spec,
        ),
    )


def _ordered(name: str, blocks: list[Array], order: list[int]) -> Iterator[tuple[str, Array]]:
    """The rows of an array in this order: as one array, or one by one where they differ in shape."""
    if len({block.shape[1:] for block in blocks}) == 1:
        yield name, np.concatenate(blocks)[order]
        return
    rows = [row for block in blocks for row in block]
    yield from ((sample_name(name, place), rows[number]) for place, number in enumerate(order))


def _fingerprint(before: bytes, row: Array) -> bytes:
    """Of a sample's value for one more input, behind the fingerprint of those before."""
    digest = hashlib.blake2b(before, digest_size=12)
    digest.update(np.ascontiguousarray(row).view(np.uint8).data)
    return digest.digest()


def _spread_order(count: int) -> list[int]:
    """The numbers below ``count`` by their reversed bits (van der Corput): every beginning is spread evenly."""
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(format(k, f"0{bits}b")[::-1], 2) for k in range(1 << bits))
    return [k for k in reversed_bits if k < count]


def first_values(picked: OpenDataset, tensor: TensorInfo) -> Array:
    """What some of the samples are as fed to one input: [samples, ...] of the input's type.

    Of samples of different shapes only what lies within the shortest axes of all of them.
    """
    array, spec = picked.array_for(tensor)
    elements = max(1, math.prod(array.shape[1:]))
    count = max(_FEWEST_MEASURED, min(_MEASURED, _MEASURED_ELEMENTS // elements))
    transform, reader = Transform(tensor, spec, array.dtype, told_shape(array)), array.open()
    blocks = [transform(reader.read(alike)) for _, alike in pieces([array], 0, min(count, picked.samples), count)]
    if len(blocks) == 1:
        return blocks[0]
    common = [slice(min(lengths)) for lengths in zip(*(block.shape[1:] for block in blocks), strict=True)]
    return np.concatenate([block[(slice(None), *common)] for block in blocks])


def run_on(
    session: Session,
    picked: OpenDataset,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[str] | None = None,
    *,
    samples: Sequence[int] | None = None,
    change: Callable[[dict[str, Array]], dict[str, Array]] | None = None,
) -> list[list[Array]]:
    """Outputs of a model on these samples: one list of arrays per batch, without samples that fill up.

    Args:
        session: the model.
        picked: the samples.
        inputs: the model's.
        outputs: names of those wanted; None for all.
        samples: ascending numbers of those to run; None: all.
        change: what to do to the feeds first.

    Raises:
        EngineError: the runtime failed on the data.
    """
    found = []
    size = choose_batch_size(inputs, picked, _RUN_BATCH)
    for batch in picked.batches(inputs, size, samples=samples):
        feeds = batch.feeds if change is None else change(dict(batch.feeds))
        results = session.run(feeds, outputs, numbers=batch.numbers)
        found.append([batch.cut(a) if isinstance(a, np.ndarray) else a for a in results])
    return found
