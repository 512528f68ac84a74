"""A model of 3 GB with external data, its weights alone quantized by the command line: time and peak of memory.

The model is twelve products of 8192 x 8192, its data file sparse. The peak is that of the process, mapped pages of the
file counted in. Takes some minutes and 4 GB of disk.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

LAYERS, WIDTH = 12, 8192
_NUMBERS = 4096


def write_model(folder: Path, layers: int = LAYERS, width: int = WIDTH) -> Path:
    """A chain of MatMuls; the first numbers of each weight are drawn, the rest is a hole in the file."""
    size = width * width * 4
    with (folder / "model.data").open("wb") as file:
        file.truncate(size * layers)
        for k in range(layers):
            file.seek(k * size)
            file.write(np.random.default_rng(k).normal(size=_NUMBERS).astype(np.float32).tobytes())
    weights = []
    for k in range(layers):
        weight = TensorProto(
            name=f"w{k}", data_type=TensorProto.FLOAT, dims=[width, width], data_location=TensorProto.EXTERNAL
        )
        for key, value in {"location": "model.data", "offset": k * size, "length": size}.items():
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    ends = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, ["n", width]) for k in (0, layers)]
    nodes = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"], name=f"layer{k}") for k in range(layers)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def quantized(path: Path, preset: str) -> tuple[float, float, int]:
    """Seconds, the peak in MiB, and the bytes of the file."""
    output = path.with_name("quantized.onnx")
    command = [
        "-c",
        "from worker.cli import main; main()",
        "quantize",
        str(path),
        "--preset",
        preset,
        "--output",
        str(output),
    ]
    begin = time.monotonic()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begin
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return seconds, peak_mib, output.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="int4_weights")
    parser.add_argument("--layers", type=int, default=LAYERS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), given.layers)
        before = (Path(folder) / "model.data").stat().st_size
        seconds, peak_mib, size = quantized(path, given.preset)
    print("| preset | float | quantized | peak memory | time |")
    print("|---|---|---|---|---|")
    print(f"| `{given.preset}` | {before:,} B | {size:,} B | {peak_mib:,.0f} MiB | {seconds:.0f} s |")


if __name__ == "__main__":
    main()
