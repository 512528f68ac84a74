"""One float pass over the calibration set that feeds every declared observer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.model import TensorInfo
from worker.quantizer.data import Dataset, choose_batch_size
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import Session, inner_session
from worker.quantizer.statistics.observers import Observer
from worker.quantizer.statistics.resume import Stand, pass_key

# Elements of fetched tensors in one batch: large enough to amortise a call, small enough to stay in memory.
_BATCH_ELEMENTS = 4_000_000
_LARGEST_BATCH = 32
# A observer's call costs as much as so many elements.
_CALL_ELEMENTS = 20_000


@dataclass(frozen=True)
class Request:
    """A tensor that a step needs reduced.

    ``pooled`` lets the runtime average each channel over its positions first, so that the observer gets [n, channels,
    1 ...]: many times cheaper than fetching the tensor, and all that a mean needs. The tensor must have rank 3 or more.
    """

    tensor: str
    observer: Observer
    pooled: bool = False


@dataclass(frozen=True)
class Kept:
    """Where a pass is kept for another attempt, or another job on the same data.

    Attributes:
        store: of the run.
        origin: what the data are, see ``Case``; empty: nobody knows, so that nothing is kept.
    """

    store: CheckpointStore
    origin: Mapping[str, Any]


def collect(
    model: ir.Model,
    requests: Sequence[Request],
    data: Dataset,
    inputs: Sequence[TensorInfo],
    *,
    limit: int | None,
    threads: int,
    run: Run,
    kept: Kept | None = None,
) -> None:
    """Run the float model once over the data and feed every request's observer on the way.

    What an earlier pass for the same has seen is taken over: the rest of it is done, if there is any.

    Args:
        model: prepared float model.
        requests: what to reduce; several may name one tensor.
        data: calibration set.
        inputs: the model's inputs.
        limit: use only the first ``limit`` samples.
        threads: of the session, and for the observers when it is done with a batch.
        run: told of progress after every batch.
        kept: where the pass may be kept; None: nowhere.

    Raises:
        EngineError: onnxruntime fails on the data.
        CanceledError: the run was canceled.
    """
    input_names = {tensor.name for tensor in inputs}
    pooled = {request.tensor: f"{request.tensor}__channel_mean" for request in requests if request.pooled}
    whole = dict.fromkeys(r.tensor for r in requests if not r.pooled and r.tensor not in input_names)
    fetched = [*whole, *pooled.values()]
    total = data.samples if limit is None else min(limit, data.samples)
    stand = _stand(model, requests, inputs, total, kept)
    done = 0 if stand is None else stand.found()
    run.progress("statistics", done, total, "samples")
    if done == total:
        return
    session = None
    size = choose_batch_size(inputs, data, 1)
    if fetched:
        session = inner_session(
            model, list(whole), pooled=pooled, threads=threads, what="float model with its inner tensors"
        )
        if size == 1 and choose_batch_size(inputs, data, _LARGEST_BATCH) > 1:
            size = _preferred_batch(session, data, inputs)
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="reduce") as pool:
        for batch in data.batches(inputs, size, limit=limit, start=done):
            run.check()
            tensors = dict(batch.feeds)
            if session is not None:
                tensors.update(zip(fetched, session.run(batch.feeds, fetched, start=batch.start), strict=True))
            read = [pooled[request.tensor] if request.pooled else request.tensor for request in requests]
            work = [(request.observer, batch.cut(tensors[name])) for request, name in zip(requests, read, strict=True)]
            _reduce(work, batch.valid, pool, threads)
            done += batch.valid
            if stand is not None:
                stand.save(done)
            run.progress("statistics", done, total, "samples")


def _stand(
    model: ir.Model,
    requests: Sequence[Request],
    inputs: Sequence[TensorInfo],
    total: int,
    kept: Kept | None,
) -> Stand | None:
    """Where the pass stands, if it is kept; nobody knows what an unnamed data set gives."""
    if kept is None or not kept.store.is_kept or not kept.origin:
        return None
    observers, read = [request.observer for request in requests], [(one.tensor, one.pooled) for one in requests]
    return Stand(kept.store, pass_key(kept.origin, model, read, observers, inputs, total), observers, total)


def _reduce(work: Sequence[tuple[Observer, np.ndarray]], samples: int, pool: ThreadPoolExecutor, threads: int) -> None:
    """Feed every observer its tensor. Each has one thread only, so the result does not depend on their number."""
    queues: list[list[tuple[Observer, np.ndarray]]] = [[] for _ in range(max(threads, 1))]
    loads = [0] * len(queues)
    for observer, values in sorted(work, key=lambda pair: -pair[1].size):
        lightest = loads.index(min(loads))
        queues[lightest].append((observer, values))
        loads[lightest] += values.size + _CALL_ELEMENTS

    def drain(queue: Sequence[tuple[Observer, np.ndarray]]) -> None:
        for observer, values in queue:
            if values.size:
                observer.update(values, samples)

    busy = [pool.submit(drain, queue) for queue in queues[1:] if queue]
    drain(queues[0])
    for pending in busy:
        pending.result()


def _preferred_batch(session: Session, data: Dataset, inputs: Sequence[TensorInfo]) -> int:
    """A batch size by the number of elements that the largest sample makes; the same for the same model and data."""
    largest = data.largest(inputs)
    batch = next(iter(data.batches(inputs, 1, start=largest, limit=largest + 1)))
    elements = sum(array.size for array in session.run(batch.feeds))
    return int(max(1, min(_LARGEST_BATCH, _BATCH_ELEMENTS // max(elements, 1))))
