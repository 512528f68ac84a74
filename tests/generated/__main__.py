"""Draws many networks, quantizes them, and counts what is wrong: ``python -m tests.generated --count 20000``.

Each fault is a line of JSON in the file that ``--output`` names. A process that dies is told, and goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.generated.process import work


def _start() -> tuple[Any, Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def main() -> None:
    """See the module's head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seeds", help="file of seeds, one a line, in the place of both")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", default="generated.jsonl")
    options = parser.parse_args()
    seeds = iter(range(options.first, options.first + options.count))
    if options.seeds:
        seeds = iter([int(line) for line in Path(options.seeds).read_text().split()])
    counts: Counter[str] = Counter()
    with Path(options.output).open("w") as file:
        workers = {pipe: (process, -1) for process, pipe in (_start() for _ in range(options.processes))}
        for pipe in list(workers):
            _next(workers, pipe, seeds)
        while workers:
            ready: list[Any] = wait(list(workers))
            for pipe in ready:
                process, seed = workers[pipe]
                try:
                    found = pipe.recv()
                except (EOFError, ConnectionResetError):
                    process.join()
                    found = {
                        "seed": seed,
                        "fault": f"process ended by {-process.exitcode}",
                        "detail": "",
                        "sqnr_db": None,
                    }
                    del workers[pipe]
                    process, pipe = _start()
                    workers[pipe] = (process, -1)
                counts[found["fault"] or "fine"] += 1
                if found["fault"]:
                    file.write(json.dumps(found) + "\n")
                    file.flush()
                _next(workers, pipe, seeds)
    for fault, count in counts.most_common():
        print(f"{count:7} {fault}")


def _next(workers: dict[Connection, tuple[Any, int]], pipe: Connection, seeds: Any) -> None:
    process, seed = workers[pipe][0], next(seeds, None)
    if seed is None:
        process.kill()
        del workers[pipe]
        return
    workers[pipe] = (process, seed)
    with suppress(BrokenPipeError):  # it has just died, which shows when it is read from
        pipe.send(seed)


if __name__ == "__main__":
    main()
