"""What a busy neighbour costs: wall time and CPU seconds of five recipes beside 0, 2 and 8 busy loops, by stage.

python -m benchmarks.contention [--loops 0 2 8] [RECIPE ...]

A job that shares its cores fairly takes longer by the share that others take, and computes no more than before. CPU
seconds that grow are those of threads that spin while they wait for others that do not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

GRADIENT = {"solver": "gradient", "num_iterations": 200, "data_size": 64}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("MobileNetV1 0.75", {"preset": "int8"}),
    "adaround": (
        "MobileNetV1 0.75",
        {"preset": "int8", "algorithms": [{"method": "cross_layer_equalization"}, {"method": "adaround"}]},
    ),
    "adaquant": ("ResNet20", {"preset": "int8", "algorithms": [{"method": "adaquant", **GRADIENT}]}),
    "smooth_quant": ("KWT-1", {"preset": "int8", "algorithms": [{"method": "smooth_quant"}]}),
    "qat": ("ResNet20", {"preset": "int8", "algorithms": [{"method": "qat", "epochs": 1, "data_size": 400}]}),
}
# Stages shorter than this, quiet, are too short to be told of.
TOLD_FROM_SECONDS = 1.0
MOST_WALL, MOST_CPU = 2.3, 1.15
_BUSY = "while True: pass"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        if loops:
            time.sleep(0.5)
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def measured(recipe: str) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds by stage, and of all, of a run in a process like a runner."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.contention", "--child", recipe], check=True, stdout=subprocess.PIPE
    )
    figures: dict[str, tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def child(recipe: str) -> None:
    """Run a recipe under a runner's thread settings and print its figures."""
    from worker.memory import set_threads

    threads = len(os.sched_getaffinity(0))
    set_threads(threads)
    from benchmarks.cases import case_of, data_folder, source
    from service.contracts.config import parse_config
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run.interface import SilentRun
    from worker.quantizer.run.progress import OverallRun

    figures: dict[str, tuple[float, float]] = {}
    begun: list[tuple[str, float, float]] = []
    enter, leave = OverallRun.enter, OverallRun.leave

    def entered(run: OverallRun, stage: str, expected_seconds: float | None = None) -> None:
        begun.append((stage, time.perf_counter(), time.process_time()))
        enter(run, stage, expected_seconds)

    def left(run: OverallRun) -> None:
        stage, wall, cpu = begun.pop()
        figures[stage] = (time.perf_counter() - wall, time.process_time() - cpu)
        leave(run)

    OverallRun.enter, OverallRun.leave = entered, left  # type: ignore[method-assign]
    case_name, settings = RECIPES[recipe]
    case, folder = case_of(case_name), data_folder()
    config = parse_config({**settings, "evaluation": {"advice_seconds": 0}})
    calibration, evaluation = (source(folder, part) for part in (case.calibration, case.evaluation))
    wall, cpu = time.perf_counter(), time.process_time()
    quantize(folder / case.model, config, calibration, evaluation, run=SilentRun(), threads=threads)
    figures["all"] = (time.perf_counter() - wall, time.process_time() - cpu)
    print(json.dumps(figures))


def compared(recipe: str, loops: Sequence[int]) -> bool:
    """Print a recipe's figures; False if two busy loops cost more than they may."""
    quiet: dict[str, tuple[float, float]] = {}
    holds = True
    for count in loops:
        with busy_loops(count):
            found = measured(recipe)
        quiet = quiet or found
        for stage, (wall, cpu) in found.items():
            before = quiet.get(stage, (0.0, 0.0))
            if before[0] < TOLD_FROM_SECONDS and stage != "all":
                continue
            ratios = wall / before[0], cpu / before[1]
            broken = count == 2 and (ratios[0] > MOST_WALL or ratios[1] > MOST_CPU) and stage != "latency"
            holds = holds and not broken
            print(
                f"{recipe:14} {count} loops  {stage:28} {wall:7.2f} s ({ratios[0]:5.2f}x)  CPU {cpu:7.2f} s "
                f"({ratios[1]:5.2f}x){'  BROKEN' if broken else ''}",
                flush=True,
            )
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", help=f"of {', '.join(RECIPES)}; default: all")
    parser.add_argument("--loops", nargs="+", type=int, default=[0, 2, 8])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    results = [compared(recipe, given.loops) for recipe in given.recipes or RECIPES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
