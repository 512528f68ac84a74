"""Runs a model both ways in a process of its own, which may die.

A runner of the service is a process that may die itself, and that can make no others: there it runs inside.
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


@dataclass(frozen=True)
class Outcome:
    """What became of one way to run a model.

    Attributes:
        outputs: by name, sample by sample; None: there are none.
        trouble: why not: onnxruntime's refusal, or the signal that ended the process.
        died: the process was ended.
    """

    outputs: Arrays | None = None
    trouble: str = ""
    died: bool = False


def both_ways(model: bytes, feeds: Arrays, outputs: Sequence[str], *, threads: int, run: Run) -> dict[str, Outcome]:
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
    found: dict[str, Outcome] = {}
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
                found[way] = outcome or Outcome(trouble=_words(code), died=True)
                left.remove(way)
                if outcome is None:
                    break
    return found


def _ended(folder: Path, run: Run) -> int:
    """Run the program to its end; its exit code."""
    command = [sys.executable, "-P", program.__file__, str(folder)]
    nothing = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    except PermissionError:
        program.main(folder)
        return 0
    with process:
        try:
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    run.check()
        finally:
            process.kill()


def _outcome(folder: Path, way: str, outputs: Sequence[str], samples: int) -> Outcome | None:
    """What one way has left; None: nothing."""
    arrays, words = folder / f"{way}.npz", folder / f"{way}.txt"
    if words.exists():
        return Outcome(trouble=words.read_text())
    if not arrays.exists():
        return None
    with np.load(arrays, allow_pickle=False) as stored:
        return Outcome([{name: stored[f"{k}/{name}"] for name in outputs} for k in range(samples)])


def _words(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        return f"the process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was ended by signal {-code}"
