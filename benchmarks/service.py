"""What the service adds to the engine's own time on the embedded default, with spare runners and without.

usage: python -m benchmarks.service [--jobs N] [--gap SECONDS]

For each: the time from a submission to the job's first progress event, as a client sees both, on an idle service; its
overhead, from the job's creation to its success by the service's own timestamps, less the report's stages; the time
for each of as many jobs that are submitted at once; and what an idle spare runner holds. The model and the data are
made here: a small convolutional network on noise.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnx.parser

from service.client import Client
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from worker.commands.demo import serving

MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
small (float[n, 3, 16, 16] x) => (float[n, 10] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
  r = Relu (c)
  p = GlobalAveragePool (r)
  f = Flatten (p)
  y = Gemm <transB = 1> (f, v, d)
}
"""


def write_inputs(folder: Path) -> tuple[Path, Path]:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    shapes = {"w": (32, 3, 3, 3), "b": (32,), "v": (10, 32), "d": (10,)}
    for name, shape in shapes.items():
        array = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "small.onnx")
    np.savez(folder / "data.npz", x=random.normal(size=(64, 3, 16, 16)).astype(np.float32))
    return folder / "small.onnx", folder / "data.npz"


def seconds_to_progress(client: Client, inputs: dict[str, str]) -> tuple[float, float]:
    """From a submission to its first progress event; and what the service added to the engine's time."""
    begun = time.perf_counter()
    job = client.submit(**inputs, config=QuantizationConfig())
    for event in client.follow(job.id):
        if event.type == "progress":
            break
    progress = time.perf_counter() - begun
    job = client.wait_succeeded(job.id)
    assert job.finished_at is not None
    engine = sum(stage.seconds for stage in client.report(job.id).stages)
    return progress, (job.finished_at - job.created_at).total_seconds() - engine


def seconds_of_each(client: Client, inputs: dict[str, str], jobs: int) -> float:
    """Of so many that are submitted at once."""
    begun = time.perf_counter()
    for job in [client.submit(**inputs, config=QuantizationConfig()) for _ in range(jobs)]:
        client.wait_succeeded(job.id)
    return (time.perf_counter() - begun) / jobs


def spares(home: Path) -> Iterator[Path]:
    """Folders below /proc of the spare runners of a service."""
    for folder in Path("/proc").iterdir():
        is_spare = folder.name.isdigit() and b"--spare" in (folder / "cmdline").read_bytes()
        if is_spare and (folder / "cwd").readlink() == home / "scratch":
            yield folder


def mebibytes(process: Path) -> str:
    """What a process holds alone, and with its part of what it shares."""
    lines = (process / "smaps_rollup").read_text().splitlines()[1:]
    held = {name.rstrip(":"): int(size) / 1024 for name, size, *_ in map(str.split, lines)}
    alone = held["Private_Clean"] + held["Private_Dirty"]
    return f"{alone:.0f} MiB, with its part of shared pages {held['Pss']:.0f} MiB"


def measure(folder: Path, jobs: int, gap_seconds: float, **variables: str) -> None:
    model_file, data_file = write_inputs(folder)
    home = folder / "home"
    with serving(home, folder / "service.log", **variables) as url, Client(url) as client:
        model, data = client.push_model(model_file), client.push_dataset(data_file, PreprocessingSpec())
        inputs = {"model": client.wait_ready(model).id, "calibration": client.wait_ready(data).id}
        found = []
        for _ in range(jobs):
            time.sleep(gap_seconds)
            found.append(seconds_to_progress(client, inputs))
        progress, overheads = zip(*found, strict=True)
        each = seconds_of_each(client, inputs, jobs)
        time.sleep(gap_seconds)
        idle = {mebibytes(process) for process in spares(home)}
    print(f"submit to first progress: median {median(progress):.2f} s of {jobs} jobs, longest {max(progress):.2f} s")
    print(f"overhead, submit to succeeded less the engine: median {median(overheads):.2f} s")
    print(f"{jobs} jobs at once: {each:.2f} s each")
    for line in sorted(idle):
        print(f"an idle spare runner holds {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--gap", type=float, default=4.0, help="seconds between jobs")
    arguments = parser.parse_args()
    for spare in ("false", "true"):
        print(f"QUANTMILL_SPARE_RUNNERS={spare}")
        with tempfile.TemporaryDirectory() as temporary:
            measure(Path(temporary), arguments.jobs, arguments.gap, QUANTMILL_SPARE_RUNNERS=spare)


if __name__ == "__main__":
    main()
