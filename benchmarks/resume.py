"""What a killed worker costs a job: MobileNetV1 with AdaRound, whose worker is killed twice, beside an undisturbed run.

usage: python -m benchmarks.resume [--solver moments|gradient] [--kills 2]
                                                                 (needs QUANTMILL_DATA, default ../shared/data)

Every worker is a process group on a "host" of its own: another data directory, with its own scratch and cache. Hosts
share the database, the broker, the store and QUANTMILL_CHECKPOINT_DIR. A worker is killed by SIGKILL, with its runner,
while layers are at work; the next one goes on. Prints how many layers were begun before each kill, how many of them the
next attempt took over, and whether the model has the bytes of the undisturbed run. Exits 1 if more than one layer was
done again after a kill, or if the bytes differ.

--statistics measures instead what it costs to keep a pass over the calibration set, as a part of the pass itself.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.cases import THREADS, case_of, data_folder, source
from benchmarks.hosts import Installation
from tests.worker.workbench import wait_for

MODEL = "MobileNetV1 0.75"
PATIENCE_SECONDS = 1800.0
MOST_AGAIN = 1
METHODS = ("minmax", "percentile", "entropy", "mse")
MOST_COST = 0.05


def config_of(solver: str) -> dict[str, Any]:
    adaround = {"method": "adaround", "solver": solver}
    if solver == "gradient":
        adaround |= {"num_iterations": 300, "batch_size": 2}
    evaluation = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
    return {"preset": "xint8", "algorithms": [adaround], "evaluation": evaluation}


def begun(installation: Installation, job_id: str, attempt: int) -> int:
    """Layers that an attempt had begun, as its progress tells."""
    events = [event for event in installation.bench.events(job_id, "progress") if event.attempt == attempt]
    told = [
        event.data["done"] for event in events if event.data["stage"] == "adaround" and event.data["unit"] == "layers"
    ]
    return max(told, default=-1) + 1


def kept(installation: Installation, job_id: str, names: Collection[str]) -> int:
    """How many of these layers lie among the checkpoints of the job."""
    files = {hashlib.sha256(f"adaround {name}".encode()).hexdigest() for name in names}
    return sum(path.name in files for path in installation.kept(job_id))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solver", choices=("moments", "gradient"), default="moments")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--statistics", action="store_true")
    options = parser.parse_args(arguments)
    if options.statistics:
        return statistics_cost()
    folder, case = data_folder(), case_of(MODEL)
    name, preprocessing = case.calibration
    with tempfile.TemporaryDirectory(prefix="quantmill-resume-") as place:
        installation = Installation(
            Path(place),
            (folder / case.model).read_bytes(),
            (folder / name).read_bytes(),
            config_of(options.solver),
            preprocessing=preprocessing.model_dump(mode="json"),
            QUANTMILL_THREADS=str(THREADS),
        )
        with installation.process("reconciler", "reconcile"):
            return measure(installation, options.kills)


def measure(installation: Installation, kills: int) -> int:
    seconds = time.monotonic()
    with installation.process("calm", "worker"):
        calm = installation.submit()
        installation.ended(calm, seconds=PATIENCE_SECONDS)
    seconds = time.monotonic() - seconds
    names = installation.algorithm(calm).reconstruction
    layers = len(names)
    print(f"{MODEL}, {layers} layers: undisturbed in {seconds:.0f} s")
    killed = installation.submit()
    before, worst = 0, 0
    for kill in range(kills):
        host, wanted = f"host-{kill}", layers * (kill + 1) // (kills + 1)
        with installation.process(host, "worker") as worker:

            def far_enough(attempt: int = kill + 1, wanted: int = wanted) -> bool:
                return begun(installation, killed, attempt) > wanted

            wait_for(far_enough, seconds=PATIENCE_SECONDS)
            installation.kill(host, worker)
        # layers are done one after the other, each is kept when it is finished
        at_kill, finished = begun(installation, killed, kill + 1), kept(installation, killed, names)
        again = max(0, at_kill - finished)
        worst = max(worst, again)
        print(f"kill {kill + 1}: {at_kill} layers begun, {finished} kept: {again} to be done again")
        before = finished
    with installation.process("last", "worker"):
        job = installation.ended(killed, seconds=PATIENCE_SECONDS)
    _, taken_over = installation.layers(killed)
    worst = max(worst, before - taken_over)
    same = installation.artifacts(killed)["model"] == installation.artifacts(calm)["model"]
    print(f"attempt {job.attempt}: {taken_over} of {layers} layers taken over; bytes {'equal' if same else 'DIFFER'}")
    print(f"layers done again after a kill: at most {worst}")
    return 0 if same and worst <= MOST_AGAIN and taken_over >= before else 1


def statistics_cost() -> int:
    """Time spent on keeping passes as a part of their own; exits 1 if it is more than ``MOST_COST``."""
    from service.contracts.config import parse_config
    from worker.quantizer.pipeline import Provisions, fill
    from worker.quantizer.refine.draft import Case
    from worker.quantizer.run.interface import SilentRun
    from worker.quantizer.statistics import collect

    spent, whole = Stopwatch(time.thread_time), Stopwatch(time.process_time)
    spent.watch(collect, "_stand")
    spent.watch(collect.Stand, "found")
    spent.watch(collect.Stand, "save")
    whole.watch(Case, "collect")
    folder, case = data_folder(), case_of(MODEL)
    calibration, worst = source(folder, case.calibration), 0.0
    for method in METHODS:
        config = parse_config({"preset": "plain", "activation": {"calibration": {"method": method}}})
        with tempfile.TemporaryDirectory(prefix="quantmill-resume-") as place:
            for what in ("first", "again"):
                spent.clear()
                whole.clear()
                run = SilentRun()
                kept = Path(place)
                provisions = Provisions(checkpoint_dir=kept)
                filled = fill(folder / case.model, config, calibration, run=run, threads=THREADS, provisions=provisions)
                assert not filled.is_empty
                size = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
                if what == "again":
                    print(f"{'':12} {whole.seconds:6.2f} s when it is {'taken over' if size else 'done again'}")
                    continue
                # the pass has all threads at work, keeping has one
                parts = spent.seconds / (whole.seconds - spent.seconds), spent.cpu_seconds * THREADS / whole.cpu_seconds
                worst = max(worst, parts[1])
                words = f"of which {spent.seconds:.3f} s for keeping {size >> 10} KiB: "
                words += f"{parts[0]:.1%}, of CPU {parts[1]:.1%}"
                print(f"{method:12} {whole.seconds:6.2f} s, {words}")
    print(f"keeping costs at most {worst:.1%} of the CPU time")
    return 0 if worst <= MOST_COST else 1


class Stopwatch:
    """Seconds spent in functions, and CPU seconds by a clock: a machine with other work on it takes longer."""

    def __init__(self, cpu_clock: Callable[[], float]) -> None:
        self._cpu_clock = cpu_clock
        self.clear()

    def clear(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def watch(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def timed(*args: Any, **words: Any) -> Any:
            began, cpu = time.perf_counter(), self._cpu_clock()
            try:
                return original(*args, **words)
            finally:
                self.seconds += time.perf_counter() - began
                self.cpu_seconds += self._cpu_clock() - cpu

        setattr(owner, name, timed)


if __name__ == "__main__":
    sys.exit(main())
