"""A model of 3 GB with external data, its weights alone quantized, by the command line or through a service: time and
peaks of memory.

The model is twelve products of 8192 x 8192, its data file sparse. Takes some minutes and 4 GB of disk, with a service
12 GB: what is uploaded is no longer sparse.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from service.contracts.runner import DATA_KIND

LAYERS, WIDTH = 12, 8192
_NUMBERS = 4096
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.02, 3600.0


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


class Peaks:
    """Follows the memory of processes and of all that they start, by what they are.

    ``VmHWM`` is what ``ru_maxrss`` tells, mapped pages counted in, but a run starts it anew with each stage;
    ``RssAnon`` is what no file stands behind, for which a limit kills.

    Args:
        root: the process at the top.
        words: of command lines, by what is to be printed; "" is every process.
    """

    def __init__(self, root: int, words: dict[str, str]) -> None:
        self._root, self._words = root, words
        self.resident_mib = dict.fromkeys(words, 0.0)
        self.anonymous_mib = dict.fromkeys(words, 0.0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            for pid in _family(self._root):
                with contextlib.suppress(OSError, KeyError):  # it has ended
                    self._look(Path(f"/proc/{pid}"))

    def _look(self, process: Path) -> None:
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        told = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        resident, anonymous = (int(told[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
        for what, word in self._words.items():
            if word in command and "launcher.py" not in command:
                self.resident_mib[what] = max(self.resident_mib[what], resident)
                self.anonymous_mib[what] = max(self.anonymous_mib[what], anonymous)


def _family(root: int) -> list[int]:
    """A process and those that it has started, they or their children."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(word) for word in (task / "children").read_text().split()]
    return found


def quantized(path: Path, preset: str) -> tuple[float, int, Peaks]:
    """By the command line: seconds, the bytes of what is made, and the memory."""
    output = path.with_name("quantized.onnx")
    command = ["-m", "worker.cli", "quantize", str(path), "--preset", preset, "--output", str(output)]
    begin = time.monotonic()
    with (
        subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) as process,
        Peaks(process.pid, {"quantmill quantize": ""}) as peaks,
    ):
        code = process.wait()
    if code:
        raise SystemExit(code)
    return time.monotonic() - begin, sum(file.stat().st_size for file in path.parent.glob("quantized.onnx*")), peaks


def served(path: Path, preset: str) -> tuple[float, int, Peaks]:
    """The same by a service of its own: from the upload to the download."""
    from service.client import Client

    home = path.with_name("home")
    up = [sys.executable, "-m", "worker.cli", "up", "--data-dir", str(home), "--port", "0"]
    words = {"API": "cli api", "validation and job (runner)": "worker.runner", "workers": "cli worker"}
    begin = time.monotonic()
    with subprocess.Popen(up, stdout=subprocess.PIPE, env={**os.environ, "QUANTMILL_OPEN": "true"}) as process:
        try:
            assert process.stdout is not None
            url = next(word for word in process.stdout.readline().decode().split() if word.startswith("http://"))
            with Peaks(process.pid, words) as peaks, Client(url, patience_seconds=_PATIENCE_SECONDS) as client:
                model = client.wait_ready(client.push_model(path))
                job = client.submit(model=model.id, config={"preset": preset})
                client.wait_succeeded(job.id)
                client.download(job.id, path.with_name("quantized.onnx"))
                size = sum(item.size_bytes for item in client.artifacts(job.id) if item.kind in ("model", DATA_KIND))
        finally:
            process.send_signal(signal.SIGTERM)
    return time.monotonic() - begin, size, peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="int4_weights")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--service", action="store_true", help="through a service: upload, job, download")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), given.layers)
        before = (Path(folder) / "model.data").stat().st_size
        seconds, size, peaks = (served if given.service else quantized)(path, given.preset)
    print("| preset | float | quantized | process | peak, mapped pages counted in | peak without | time |")
    print("|---|---|---|---|---|---|---|")
    for what, mib in peaks.resident_mib.items():
        sizes = f"{before:,} B | {size:,} B"
        print(
            f"| `{given.preset}` | {sizes} | {what} | {mib:,.0f} MiB | {peaks.anonymous_mib[what]:,.0f} MiB | "
            f"{seconds:.0f} s |"
        )


if __name__ == "__main__":
    main()
