"""What onnxruntime's profile says of a model: the time of every kernel.

The format is that of Chrome's trace events: one per kernel and run, with ``ts`` and ``dur`` in microseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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
