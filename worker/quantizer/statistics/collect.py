"""One float pass that feeds every observer; one that was broken off goes on where it stood, in another process too."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset, choose_batch_size
from worker.quantizer.graph.serialized import model_digest
from worker.quantizer.run.checkpoint import Arrays, CheckpointStore, Pace, pack, unpack
from worker.quantizer.run.identity import content_key
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import Session, inner_session
from worker.quantizer.statistics.observers import Observer

# The state of observers in the middle of a pass as arrays, to go on with in another process.
#
# A observer is made by its settings and changes as it sees values. Both are attributes: numbers, words, arrays, lists
# and tuples of these, and objects of this package, which are gone into. Whatever else there is (functions that search,
# grids) was given by whoever made the observer, does not change, and is left as it is.
#
# The settings are among the attributes: the state of fresh observers tells what was asked for.

_PACKAGE = __name__.rpartition(".")[0]
_HEAD = "head"


class Snapshot:
    """What observers have seen so far.

    Arrays are not copied before ``to_bytes``.
    """

    def __init__(self, observers: Sequence[object]) -> None:
        self._arrays: Arrays = {}
        self._head = [self._of(observer) for observer in observers]

    @property
    def size_bytes(self) -> int:
        """Of the arrays, which are almost all of it."""
        return sum(array.nbytes for array in self._arrays.values())

    def to_bytes(self, done: int) -> bytes:
        """For a checkpoint.

        Raises:
            TypeError: an array holds no plain numbers.
        """
        words = json.dumps({"done": done, "observers": self._head}).encode()
        return pack({_HEAD: np.frombuffer(words, np.uint8), **self._arrays})

    def _of(self, value: object) -> Any:
        if isinstance(value, np.ndarray | np.generic):  # before floats, of which np.float64 is one
            name = f"{len(self._arrays)}"
            self._arrays[name] = np.asarray(value)
            return {"array" if isinstance(value, np.ndarray) else "number": name}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self._of(item) for item in value]}
        if _is_ours(value):
            return {
                "class": type(value).__qualname__,
                "fields": {key: self._of(item) for key, item in vars(value).items()},
            }
        return {"given": type(value).__qualname__}


def restore(observers: Sequence[object], data: bytes) -> int:
    """Bring fresh observers to where those stood that ``data`` was made of; returns how many samples they have seen.

    All of them, or none if there is an error.

    ``observers`` are made by the same settings, in the same order.

    Raises:
        ValueError: these are other bytes, or of other observers.
        LookupError: likewise.
    """
    arrays = unpack(data)
    head = json.loads(arrays[_HEAD].tobytes())
    if len(head["observers"]) != len(observers):
        raise ValueError("it is of another number of observers")
    changes: list[tuple[object, str, Any]] = []
    for observer, stored in zip(observers, head["observers"], strict=True):
        _plan(observer, stored, arrays, changes)
    for owner, key, value in changes:
        setattr(owner, key, value)
    return int(head["done"])


def _plan(owner: object, stored: Any, arrays: Arrays, changes: list[tuple[object, str, Any]]) -> None:
    """Note what is to be set in ``owner`` and the objects that it holds."""
    fields = vars(owner)
    if (
        not isinstance(stored, dict)
        or stored.get("class") != type(owner).__qualname__
        or stored["fields"].keys() != fields.keys()
    ):
        raise ValueError(f"it is of another observer than {type(owner).__qualname__}")
    for key, value in stored["fields"].items():
        if isinstance(value, dict) and "class" in value:
            if is_dataclass(fields[key]):
                continue  # settings: the same in every observer made alike
            _plan(fields[key], value, arrays, changes)
        elif not (isinstance(value, dict) and "given" in value):
            changes.append((owner, key, _value(value, arrays)))


def _value(stored: Any, arrays: Arrays) -> Any:
    if not isinstance(stored, dict):
        return stored
    ((kind, content),) = stored.items()
    if kind in ("list", "tuple"):
        items = [_value(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "number":
        return arrays[content][()]
    if kind == "array":
        return arrays[content]
    raise ValueError(f"no value of a observer: {kind}")


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith(f"{_PACKAGE}.") and hasattr(value, "__dict__") and not callable(value)


# A pass over the calibration set that was broken off goes on where it stood; one that was finished is not repeated.
#
# What a pass gives depends on the float network, the data and the observers alone, so that other jobs find it too.

# Saving may take this part of the time of the pass.
_MOST_TIME = 0.02
# What a slow disk writes: before anything was written, nothing else is known.
_BYTES_PER_SECOND = 100e6
# A shorter pass is sooner repeated than looked up.
_FIRST_SECONDS = 1.0


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
    """Where a pass is kept for another attempt, or another job on the same data."""

    store: CheckpointStore  # of the run
    origin: Mapping[str, Any]  # what the data are, see ``Case``; empty: nobody knows, so that nothing is kept


class Stand:
    """Where one pass stands, kept for others by ``key``, of ``pass_key``; its observers are fresh."""

    def __init__(self, store: CheckpointStore, key: str, observers: Sequence[object], total: int) -> None:
        self._store, self._key = store, key
        self._reducers, self._total = observers, total
        self._began = time.monotonic()
        self._pace = Pace(_MOST_TIME, first_seconds=_FIRST_SECONDS)

    def found(self) -> int:
        """Bring the observers to where another pass stood; returns how many samples they have seen by that."""
        return self._store.find_as(self._key, partial(restore, self._reducers)) or 0

    def save(self, done: int) -> None:
        """Keep what the observers have seen, if that is worth the time; the whole pass even if some of it just was.

        ``done`` samples are in whole batches.
        """
        began, is_whole = time.monotonic(), done == self._total
        elapsed = began - self._began
        if elapsed < _FIRST_SECONDS or not (is_whole or self._pace.is_due):
            return
        snapshot = Snapshot(self._reducers)
        needed = snapshot.size_bytes / _BYTES_PER_SECOND / _MOST_TIME - elapsed
        if needed > 0:
            self._pace.wait(needed)
            return
        self._store.keep(self._key, snapshot.to_bytes(done), shared=is_whole)
        self._pace.spent(began)


def pass_key(
    origin: Mapping[str, Any], model: ir.Model, requests: Sequence[Request], inputs: Sequence[TensorInfo], total: int
) -> str:
    """The content key of what a pass with fresh observers gives; ``origin``: see ``Case``."""
    known = {name: value for name, value in origin.items() if name not in ("evaluation", "graphs", "model")}
    asked = hashlib.sha256(Snapshot([request.observer for request in requests]).to_bytes(0)).digest()
    shapes = [tensor.model_dump(mode="json") for tensor in inputs]
    tensors = [[request.tensor, request.pooled] for request in requests]
    return content_key("statistics", known, model_digest(model), tensors, asked, shapes, total)


# Elements of fetched tensors in one batch: large enough to amortise a call, small enough to stay in memory.
_BATCH_ELEMENTS = 4_000_000
_LARGEST_BATCH = 32
# A observer's call costs as much as so many elements.
_CALL_ELEMENTS = 20_000


def collect(
    model: ir.Model,
    requests: Sequence[Request],
    data: OpenDataset,
    inputs: Sequence[TensorInfo],
    *,
    limit: int | None,
    threads: int,
    run: Run,
    kept: Kept | None = None,
    device: str = "cpu",
) -> None:
    """Run the float model once over the data and feed every request's observer on the way.

    What an earlier pass for the same has seen is taken over: the rest of it is done, if there is any.

    Only the first ``limit`` samples are used; ``threads`` are those of the session, and of the observers when it is
    done with a batch. ``kept`` is where the pass may be kept; None: nowhere. ``device`` is where the model runs; the
    observers compute on the CPU.

    Raises:
        EngineError: onnxruntime fails on the data.
        CanceledError: the run was canceled.
    """
    input_names = {tensor.name for tensor in inputs}
    pooled = {request.tensor: f"{request.tensor}__channel_mean" for request in requests if request.pooled}
    whole = dict.fromkeys(r.tensor for r in requests if not r.pooled and r.tensor not in input_names)
    fetched = [*whole, *pooled.values()]
    total = data.samples if limit is None else min(limit, data.samples)
    stand = None
    if kept is not None and kept.store.is_kept and kept.origin:  # nobody knows what an unnamed data set gives
        key = pass_key(kept.origin, model, requests, inputs, total)
        stand = Stand(kept.store, key, [request.observer for request in requests], total)
    done = 0 if stand is None else stand.found()
    run.progress("statistics", done, total, "samples")
    if done == total:
        return
    session = None
    size = choose_batch_size(inputs, data, 1)
    if fetched:
        session = inner_session(
            model,
            list(whole),
            pooled=pooled,
            threads=threads,
            what="float model with its inner tensors",
            device=device,
        )
        if size == 1 and choose_batch_size(inputs, data, _LARGEST_BATCH) > 1:
            size = _preferred_batch(session, data, inputs)
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="reduce") as pool:
        for batch in data.batches(inputs, size, samples=range(done, total)):
            run.check()
            tensors = dict(batch.feeds)
            if session is not None:
                tensors.update(zip(fetched, session.run(batch.feeds, fetched, numbers=batch.numbers), strict=True))
            read = [pooled[request.tensor] if request.pooled else request.tensor for request in requests]
            work = [(request.observer, batch.cut(tensors[name])) for request, name in zip(requests, read, strict=True)]
            _reduce(work, batch.valid, pool, threads)
            done += batch.valid
            if stand is not None:
                stand.save(done)
            run.progress("statistics", done, total, "samples")


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


def _preferred_batch(session: Session, data: OpenDataset, inputs: Sequence[TensorInfo]) -> int:
    """A batch size by the number of elements that the largest sample makes; the same for the same model and data."""
    largest = data.largest(inputs)
    batch = next(iter(data.batches(inputs, 1, samples=[largest])))
    elements = sum(array.size for array in session.run(batch.feeds))
    return int(max(1, min(_LARGEST_BATCH, _BATCH_ELEMENTS // max(elements, 1))))
