"""Every operator that ONNX tests, quantized under five presets: prints a table of docs/benchmarks.md.

usage: python -m benchmarks.nodes [--processes 2] [--presets NAME ...] [--cases WORD ...]

The 1,884 cases of ``onnx.backend.test.case.node``, each a model of one operator or of its function's body, with
constant weights (tests/support/node_cases.py). A quantized model is to run, with finite values where the float model's
are; the engine may refuse what is the fault of the data (most of all samples of one number, NaN and strings) or of the
float model (that onnxruntime does not run it). All else is a failure: it is printed with its reason, and the exit code
is 1. Cases are quantized in processes of their own, so that a crash of the runtime is an outcome as well. Takes about
four minutes on two cores that do nothing else.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from tests.support.node_cases import PRESETS, Outcome, node_cases, outcome

Job = tuple[str, str]  # name of the case, preset
# A process quantizes so many cases after another.
_CHUNK = 400


def main(processes: int, presets: Sequence[str], words: Sequence[str]) -> int:
    names = [name for name in node_cases() if not words or any(word in name for word in words)]
    jobs = [(name, preset) for name in names for preset in presets]
    found: dict[str, Counter[str]] = {preset: Counter() for preset in presets}
    failures = 0
    for (name, preset), result in outcomes(jobs, processes):
        found[preset]["failed" if result.kind == "failed" else str(result)] += 1
        if result.kind == "failed":
            failures += 1
            print(f"{name}, {preset}: {result.why}: {result.detail}", flush=True)
    print(table(found))
    return int(failures > 0)


def outcomes(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Outcome]]:
    """Of all jobs, as they come. A process that ends before its jobs has crashed on the next one of them."""
    chunks = deque(deque(jobs[k : k + _CHUNK]) for k in range(0, len(jobs), _CHUNK))
    busy: dict[Connection, tuple[BaseProcess, deque[Job]]] = {}
    fork = multiprocessing.get_context("fork")  # they share the cases, which take seconds to make
    while chunks or busy:
        while chunks and len(busy) < processes:
            chunk = chunks.popleft()
            here, there = fork.Pipe(duplex=False)
            process: BaseProcess = fork.Process(target=_work, args=(tuple(chunk), there))
            process.start()
            there.close()
            busy[here] = process, chunk
        for one in wait(list(busy)):
            assert isinstance(one, Connection)
            process, chunk = busy[one]
            try:
                result: Outcome = one.recv()
            except EOFError:
                process.join()
                del busy[one]
                if chunk:
                    yield chunk.popleft(), Outcome("failed", "crash", f"the process ended with {process.exitcode}")
                if chunk:
                    chunks.appendleft(chunk)
            else:
                yield chunk.popleft(), result


def _work(jobs: Sequence[Job], answers: Connection) -> None:
    cases = node_cases()
    for name, preset in jobs:
        answers.send(outcome(cases[name], preset))


def table(found: dict[str, Counter[str]]) -> str:
    """Outcomes by preset, in Markdown."""
    kinds = sorted({kind for counts in found.values() for kind in counts}, key=lambda kind: (kind != "runs", kind))
    lines = [
        f"| preset | {' | '.join(kind.replace('refused:', '') for kind in kinds)} |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for preset, counts in found.items():
        lines.append(f"| `{preset}` | {' | '.join(f'{counts[kind]:,}' for kind in kinds)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    parser.add_argument("--cases", nargs="+", default=(), help="words of their names")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of libraries, on models that are meant to be odd
    sys.exit(main(options.processes, options.presets, options.cases))
