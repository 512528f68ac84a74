"""How long a forward pass takes here, within bounds of time and memory; and onnxruntime's profile, kernel by kernel."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort

from service.contracts.model import ASSUMED_LENGTH, ForwardPass, Work
from worker.quantizer.runtime.faults import RUNTIME_ERRORS

_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
# As many samples at a time as a job runs, where the model takes them.
_BATCH = 8
_SECONDS, _FIRST_SECONDS, _MOST_RUNS = 0.1, 1.0, 10
# Of a model beyond these the graph alone has to tell: nobody waits for its upload any longer.
_MOST_BYTES, _MOST_MULTIPLY_ADDS = 1 << 28, 4_000_000_000
_SEED = 1


def forward_pass(session: ort.InferenceSession, work: Work | None, *, threads: int) -> ForwardPass | None:
    """Time a model on made-up inputs: normal floats, and zeros, which are a valid index of everything.

    An axis without a size is taken as ``Work`` takes it. The first run is not counted; of the others the fastest is.

    Args:
        session: of the model.
        work: what its graph computes; None: unknown, and then nothing is run.
        threads: of the session.

    Returns:
        None where the model is too large for a quick try, takes no arrays, or does not run on such inputs.
    """
    taken = session.get_inputs()
    if work is None or any(each.type not in _DTYPES or each.shape is None for each in taken):
        return None
    open_first = bool(taken) and all(each.shape and not isinstance(each.shape[0], int) for each in taken)
    for samples in (_BATCH, 1) if open_first else (1,):
        fed_bytes = sum(prod(_shape(each, samples)) * np.dtype(_DTYPES[each.type]).itemsize for each in taken)
        computed_bytes = work.activation_bytes * samples
        if max(fed_bytes, computed_bytes) > _MOST_BYTES or work.multiply_adds * samples > _MOST_MULTIPLY_ADDS:
            continue
        feeds = {each.name: _made_up(each, samples) for each in taken}
        seconds = _fastest(session, feeds)
        if seconds is not None:
            elements = max((array.size // samples for array in feeds.values()), default=1)
            return ForwardPass(seconds=seconds, samples=samples, elements=max(elements, 1), threads=threads)
    return None


def _shape(taken: ort.NodeArg, samples: int) -> list[int]:
    """Of an input; an axis without a size is the samples' if it is the first."""
    return [
        axis if isinstance(axis, int) and axis >= 0 else (samples if place == 0 else ASSUMED_LENGTH)
        for place, axis in enumerate(taken.shape)
    ]


def _made_up(taken: ort.NodeArg, samples: int) -> np.ndarray:
    """Values of an input, of its dtype."""
    shape, dtype = _shape(taken, samples), np.dtype(_DTYPES[taken.type])
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.random.default_rng([_SEED, prod(shape)]).standard_normal(shape, np.float32).astype(dtype)


def _fastest(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> float | None:
    """Seconds of the fastest run; None if it fails, or the first does not end in time."""
    best, spent = None, 0.0
    for number in range(1 + _MOST_RUNS):
        options = ort.RunOptions()
        limit = threading.Timer(_FIRST_SECONDS, setattr, (options, "terminate", True))
        limit.start()
        begin = time.perf_counter()
        try:
            session.run(None, feeds, options)
        except (*RUNTIME_ERRORS, MemoryError, ValueError):
            return best
        finally:
            limit.cancel()
        taken = time.perf_counter() - begin
        if number == 0 and taken < _SECONDS:
            continue
        best = taken if best is None else min(best, taken)
        spent += taken
        if spent >= _SECONDS:
            break
    return best


# What onnxruntime's profile says of a model: the time of every kernel.
#
# The format is that of Chrome's trace events: one per kernel and run, with ``ts`` and ``dur`` in microseconds.

_KERNEL, _RUN = "_kernel_time", "model_run"
# The first run of a session warms up.
_WARMUP_RUNS = 1


class Kernel(NamedTuple):
    """A kernel of a session and its time in one run, without that of kernels that run inside it."""

    node: str
    microseconds: float


def read_profile(path: Path) -> list[Kernel]:
    """The kernels in the order in which they first ran, each with the median of its time over all runs but the first.

    Args:
        path: that of ``Session.end_profile``.
    """
    events = json.loads(path.read_text())
    runs = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == _RUN)
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)]
    taken: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for k, (begin, end) in enumerate(runs[_WARMUP_RUNS:]):
        for event, own in _own_times([event for event in kernels if begin <= event["ts"] < end]):
            taken[event["name"].removesuffix(_KERNEL)][k] += own
    count = max(1, len(runs) - _WARMUP_RUNS)
    return [Kernel(name, median([*by_run.values(), *[0.0] * (count - len(by_run))])) for name, by_run in taken.items()]


def _own_times(events: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Each event with its duration less that of the events inside it, as those of a Loop's body are."""
    own = [float(event["dur"]) for event in events]
    order = sorted(range(len(events)), key=lambda k: (events[k]["ts"], -events[k]["dur"]))
    around: list[int] = []
    for k in order:
        while around and events[around[-1]]["ts"] + events[around[-1]]["dur"] < events[k]["ts"] + events[k]["dur"]:
            around.pop()
        if around:
            own[around[-1]] -= float(events[k]["dur"])
        around.append(k)
    return [(event, max(0.0, time)) for event, time in zip(events, own, strict=True)]
