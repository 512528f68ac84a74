"""What the service adds to the engine's own time on the embedded default.

usage: python -m benchmarks.service [--jobs N]

Overhead = from the job's creation to its success, by the service's own timestamps, less the report's stages.
The model and the data are made here: a small convolutional network on noise.
"""

from __future__ import annotations

import argparse
import tempfile
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model_file, data_file = write_inputs(folder)
        with serving(folder / "home", folder / "service.log") as url, Client(url) as client:
            model = client.wait_ready(client.push_model(model_file))
            data = client.wait_ready(client.push_dataset(data_file, PreprocessingSpec()))
            overheads = []
            for _ in range(arguments.jobs):
                job = client.submit(model=model.id, calibration=data.id, config=QuantizationConfig())
                job = client.wait_succeeded(job.id)
                engine = sum(stage.seconds for stage in client.report(job.id).stages)
                assert job.finished_at is not None
                overheads.append((job.finished_at - job.created_at).total_seconds() - engine)
            print(
                f"overhead, submit to succeeded less the engine: "
                f"median {median(overheads):.2f} s of {len(overheads)} jobs"
            )


if __name__ == "__main__":
    main()
