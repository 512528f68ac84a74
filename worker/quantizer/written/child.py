"""Runs a model both ways in a process of its own, which may die.

A runner of the service can make no others: there its supervisor does so.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worker.quantizer.run.interface import Run
from worker.quantizer.written import program

Arrays = list[dict[str, np.ndarray]]
_POLL_SECONDS = 0.25
# What native code brings upon its process; other signals come from outside.
_DEADLY = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})


@dataclass(frozen=True)
class ChildOutcome:
    """What became of one way to run a model."""

    outputs: Arrays | None = None  # by name, sample by sample; None: there are none
    trouble: str = ""  # why not: onnxruntime's refusal, or what ended the process
    died: bool = False  # the model ended the process
    untried: bool = False  # the process could not be made, or something else ended it


def both_ways(
    model: bytes, feeds: Arrays, outputs: Sequence[str], *, threads: int, run: Run
) -> dict[str, ChildOutcome]:
    """Run a model with ("optimized") and without ("plain") onnxruntime's optimizations.

    Args:
        model: serialized and whole.
        feeds: what each sample is, by name of the input.
        outputs: names of those wanted.
        threads: intra-op threads.
        run: asked whether to stop.

    Raises:
        CanceledError: the run was canceled.
    """
    found: dict[str, ChildOutcome] = {}
    with tempfile.TemporaryDirectory(prefix="quantmill-both-ways-") as name:
        folder = Path(name)
        (folder / "model.onnx").write_bytes(model)
        stored = {f"{k}/{key}": array for k, fed in enumerate(feeds) for key, array in fed.items()}
        np.savez(folder / "feeds.npz", allow_pickle=False, **stored)
        left = ["optimized", "plain"]
        while left:  # one that dies takes those behind it along
            spec = {"threads": threads, "outputs": list(outputs), "samples": len(feeds), "ways": left}
            (folder / "spec.json").write_text(json.dumps(spec))
            code = _ended(folder, run)
            for way in list(left):
                outcome = _outcome(folder, way, outputs, len(feeds))
                if outcome is None and found.keys() & set(left):
                    break  # it had no turn
                found[way] = outcome or _ending(code)
                left.remove(way)
                if outcome is None:
                    break
    return found


def _ended(folder: Path, run: Run) -> int | None:
    """Run the program to its end; its exit code, None where no process can be made."""
    command = [sys.executable, "-P", program.__file__, str(folder)]
    nothing = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError:
        return run.try_written(folder)
    with process:
        try:
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    run.check()
        finally:
            process.kill()


def _outcome(folder: Path, way: str, outputs: Sequence[str], samples: int) -> ChildOutcome | None:
    """What one way has left; None: nothing."""
    arrays, words = folder / f"{way}.npz", folder / f"{way}.txt"
    if words.exists():
        return ChildOutcome(trouble=words.read_text())
    if not arrays.exists():
        return None
    with np.load(arrays, allow_pickle=False) as stored:
        return ChildOutcome([{name: stored[f"{k}/{name}"] for name in outputs} for k in range(samples)])


def _ending(code: int | None) -> ChildOutcome:
    """What it means that the process ended without a word about a way."""
    if code is None:
        return ChildOutcome(trouble="no process can be made here", untried=True)
    if code >= 0:
        return ChildOutcome(trouble=f"its process ended with exit code {code}", untried=True)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return ChildOutcome(trouble=f"its process was ended by {name}", died=-code in _DEADLY, untried=-code not in _DEADLY)
