"""What a GPU is used for, on this machine's: that it works, how much faster it is, and how much memory it takes.

usage: python -m benchmarks.gpu [--dry-run]        (make gpu-check)

Each line is a section that runs in a process of its own, first on the CPU and then on the GPU, and passes if the GPU
was used and the quantized model is as good as that of the CPU. The whole ends within eight minutes. Networks and data
are made here; with QUANTMILL_DATA the calibration pass is that of MobileNetV2 and its pictures.

--dry-run puts the CPU in the place of the GPU and takes tiny networks: it tries this script. Exit code 1: a line has
failed; 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.cases import case_of, source
from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.runner import DatasetSource, QuantizeTask

WHOLE_SECONDS = 465.0  # for all sections, the start of this process left out
TINY_SECONDS = 60.0  # for each section of a dry run, whatever else the machine does
LARGEST_LOSS_DB = 1.0  # by which the model of the GPU may be further from the float model
NO_GPU = 2
# Of the GPU's memory, for the section that is to need more.
LITTLE_MEMORY = 1e-4
Found = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Of the networks that are made here."""

    channels: int
    layers: int
    side: int
    samples: int
    steps: int


FULL, TINY = Size(64, 4, 32, 128, 150), Size(4, 2, 6, 8, 4)


def network(size: Size) -> onnx.ModelProto:
    """A chain of convolutions behind which a classifier stands."""
    random = np.random.default_rng(0)
    nodes, weights, name, channels = [], [], "x", 3
    for k in range(size.layers):
        shape = (size.channels, channels, 3, 3)
        weight = random.normal(scale=(2 / (9 * channels)) ** 0.5, size=shape).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(weight, f"w{k}"))
        nodes.append(onnx.helper.make_node("Conv", [name, f"w{k}"], [f"c{k}"], f"conv{k}", pads=[1, 1, 1, 1]))
        nodes.append(onnx.helper.make_node("Relu", [f"c{k}"], [f"r{k}"], f"relu{k}"))
        name, channels = f"r{k}", size.channels
    last = random.normal(size=(channels, 10)).astype(np.float32)
    weights.append(onnx.numpy_helper.from_array(last, "v"))
    nodes.append(onnx.helper.make_node("GlobalAveragePool", [name], ["p"], "pool"))
    nodes.append(onnx.helper.make_node("Flatten", ["p"], ["f"], "flatten"))
    nodes.append(onnx.helper.make_node("MatMul", ["f", "v"], ["y"], "classifier"))
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    inputs = [value("x", kind, ["n", 3, size.side, size.side])]
    graph = onnx.helper.make_graph(nodes, "made", inputs, [value("y", kind, ["n", 10])], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


def write_inputs(folder: Path, size: Size) -> tuple[Path, Path]:
    """The network and its samples, as files."""
    onnx.save(network(size), folder / "float.onnx")
    samples = np.random.default_rng(1).normal(size=(size.samples, 3, size.side, size.side)).astype(np.float32)
    np.savez(folder / "data.npz", x=samples)
    return folder / "float.onnx", folder / "data.npz"


def config_of(algorithm: dict[str, Any] | None) -> dict[str, Any]:
    """4-bit weights, so that there is something to win."""
    settings: dict[str, Any] = {"weight": {"dtype": "int4"}, "evaluation": {"latency_runs": 1, "advice_seconds": 0}}
    return {**settings, "algorithms": [] if algorithm is None else [algorithm]}


# What a section's own process does: it prints one line of JSON.


def algorithm(settings: dict[str, Any], device_field: str, folder: Path, device: str, size: Size) -> Found:
    """Quantize with one algorithm that computes on ``device``."""
    settings = {**settings, device_field: device}
    if settings["method"] == "qat":
        settings["steps"] = size.steps
    elif settings.get("solver") != "moments":
        settings["num_iterations"] = size.steps
    model, data = write_inputs(folder, size)
    report, seconds = quantized(folder, model, DatasetSource(path=str(data)), config_of(settings), "cpu")
    return {"seconds": seconds, "sqnr_db": report.fidelity.sqnr_db, "used": device == "cpu" or torch_peak() > 0}


def calibration(folder: Path, device: str, size: Size) -> Found:
    """The pass over the calibration set, and the float model in the evaluation."""
    data_root = os.environ.get("QUANTMILL_DATA")
    if data_root and size is FULL:
        case, root = case_of("MobileNetV2 1.0"), Path(data_root)
        model, data = root / case.model, source(root, case.calibration)
    else:
        model, made = write_inputs(folder, size)
        data = DatasetSource(path=str(made))
    report, _ = quantized(folder, model, data, config_of(None), "cpu" if device == "cpu" else "gpu")
    seconds = sum(stage.seconds for stage in report.stages if stage.name in ("statistics", "evaluation"))
    missing = None if report.gpu is None else report.gpu.missing
    used = device == "cpu" or (missing is None and report.gpu is not None)
    return {"seconds": seconds, "sqnr_db": report.fidelity.sqnr_db, "used": used, "skipped": missing}


def out_of_memory(folder: Path, device: str, size: Size) -> Found:
    """A job that needs more GPU memory than there is ends with the limit that it met."""
    import torch

    from worker.quantizer.finetune.gradient import training
    from worker.resource_limits import resource_limit

    if device == "cpu":

        def refuse(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. This is a dry run.")

        training.train = refuse  # type: ignore[assignment]
    else:
        torch.cuda.set_per_process_memory_fraction(LITTLE_MEMORY)
    begun = time.perf_counter()
    try:
        algorithm({"method": "adaround", "solver": "gradient"}, "optim_device", folder, device, size)
    except Exception as error:
        limit = resource_limit(error)
        if limit is None:
            raise
        return {"seconds": time.perf_counter() - begun, "used": limit.where.get("resource") == "gpu_memory"}
    return {"seconds": time.perf_counter() - begun, "used": False}


def service(folder: Path, device: str, size: Size) -> Found:
    """A job of queue gpu through a service with a worker that has a GPU."""
    from service.client import Client
    from service.client.errors import ApiError
    from worker.children import command_line, start_child
    from worker.commands.demo import serving

    model_file, data_file = write_inputs(folder, size)
    home = folder / "home"
    devices = () if device == "cpu" else ("--devices", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    settings = config_of(
        {"method": "adaround", "solver": "gradient", "optim_device": "auto", "num_iterations": size.steps}
    )
    with serving(home, folder / "service.log") as url, Client(url) as client:
        command = command_line("worker", "--queues", "gpu", *devices, "--data-dir", str(home))
        unset = {name: "" for name in os.environ if name.startswith("QUANTMILL_")}
        with (folder / "worker.log").open("wb") as log:
            worker = start_child(command, variables=unset, stderr=log.fileno())
        try:
            inputs = {
                "model": client.wait_ready(client.push_model(model_file)).id,
                "calibration": client.wait_ready(client.push_dataset(data_file, PreprocessingSpec())).id,
            }
            for _ in range(120):
                try:
                    job = client.submit(**inputs, config=parse_config(settings), device="gpu")
                    break
                except ApiError as error:
                    if error.code != "no-gpu-worker":
                        raise
                    time.sleep(0.5)
            else:
                raise SystemExit(f"no GPU worker came: {(folder / 'worker.log').read_text()[-500:]}")
            begun = time.perf_counter()
            job = client.wait_succeeded(job.id)
            seconds, report = time.perf_counter() - begun, client.report(job.id)
        finally:
            worker.terminate()
            worker.wait(30)
    peak = 0 if report.gpu is None else report.gpu.peak_torch_bytes or 0
    used = job.queue == "gpu" and report.gpu is not None and (device == "cpu" or peak > 0)
    return {"seconds": seconds, "sqnr_db": report.fidelity.sqnr_db, "used": used, "peak_bytes": peak}


def quantized(
    folder: Path, model: Path, data: DatasetSource, settings: dict[str, Any], device: str
) -> tuple[Any, float]:
    """The report, and the seconds that it took."""
    from worker.quantizer.command import quantize_files
    from worker.quantizer.run.interface import SilentRun

    (folder / "out").mkdir()
    task = QuantizeTask(
        model_path=str(model),
        config=parse_config(settings),
        calibration=data,
        output_dir=str(folder / "out"),
        threads=len(os.sched_getaffinity(0)),
        device=device,  # type: ignore[arg-type]
    )
    begun = time.perf_counter()
    report = quantize_files(task, SilentRun()).report
    return report, time.perf_counter() - begun


def torch_peak() -> int:
    """Most GPU memory that torch has reserved in this process."""
    torch = sys.modules.get("torch")
    return torch.cuda.max_memory_reserved() if torch is not None and torch.cuda.is_initialized() else 0


# The sections, and the process that starts one after the other.


@dataclass(frozen=True)
class Section:
    """One line: what it does, and the seconds that it may take on the CPU (0: it is not run there) and on the GPU."""

    name: str
    run: Callable[[Path, str, Size], Found]
    cpu_seconds: float
    gpu_seconds: float


def _of(field: str, **settings: Any) -> Callable[[Path, str, Size], Found]:
    return partial(algorithm, settings, field)


SECTIONS = (
    Section("AdaRound, gradients", _of("optim_device", method="adaround", solver="gradient"), 50, 40),
    Section("AdaRound, moments", _of("optim_device", method="adaround", solver="moments"), 30, 30),
    Section("AdaQuant", _of("optim_device", method="adaquant"), 50, 40),
    Section("QAT", _of("device", method="qat"), 50, 40),
    Section("calibration pass", calibration, 30, 30),
    Section("job of queue gpu", service, 0, 55),
    Section("out of GPU memory", out_of_memory, 0, 20),
)


def child(name: str, device: str, size: Size, left_seconds: float) -> Found | str:
    """What a section found; or what went wrong, in words."""
    section = next(one for one in SECTIONS if one.name == name)
    limit = section.cpu_seconds if device == "cpu" and size is FULL else section.gpu_seconds
    limit = min(TINY_SECONDS if size is TINY else limit, left_seconds)
    if limit <= 0:
        return "no time is left"
    command = [sys.executable, "-m", "benchmarks.gpu", "--section", name, "--device", device]
    try:
        done = subprocess.run(
            command + (["--dry-run"] if size is TINY else []), capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return f"more than {limit:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def line(section: Section, on_cpu: Found | str | None, on_gpu: Found | str) -> tuple[str, str]:
    """PASS, FAIL or SKIP, and the line."""
    cpu = f"{on_cpu['seconds']:8.2f}" if isinstance(on_cpu, dict) else f"{'-':>8}"
    if isinstance(on_gpu, str):
        return "FAIL", f"{section.name:22}{cpu}{'-':>8}{'-':>8}{'-':>10}  FAIL  {on_gpu}"
    ratio = f"{on_cpu['seconds'] / on_gpu['seconds']:8.1f}" if isinstance(on_cpu, dict) else f"{'-':>8}"
    loss_db = on_cpu["sqnr_db"] - on_gpu["sqnr_db"] if isinstance(on_cpu, dict) else 0.0
    words, why = "PASS", f"CPU: {on_cpu}" if isinstance(on_cpu, str) else ""
    if on_gpu.get("skipped"):
        words, why = "SKIP", on_gpu["skipped"]
    elif not on_gpu["used"]:
        words, why = "FAIL", "the GPU was not used as it should"
    elif loss_db > LARGEST_LOSS_DB:
        words, why = "FAIL", f"{loss_db:.2f} dB worse than on the CPU"
    peak = on_gpu.get("peak_bytes", 0) / 2**20
    return words, f"{section.name:22}{cpu}{on_gpu['seconds']:8.2f}{ratio}{peak:10.0f}  {words}  {why}".rstrip()


def has_gpu() -> bool:
    """Asked in another process: this one starts others, and does not hold the GPU."""
    asked = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    return subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="the CPU in the place of the GPU, and tiny networks")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = TINY if arguments.dry_run else FULL
    if arguments.section is not None:
        section = next(one for one in SECTIONS if one.name == arguments.section)
        with tempfile.TemporaryDirectory(prefix="quantmill-gpu-") as folder:
            found = section.run(Path(folder), arguments.device, size)
        print(json.dumps({"peak_bytes": torch_peak(), **found}))
        return 0
    if not arguments.dry_run and not has_gpu():
        print("There is no GPU that torch can use.")
        return NO_GPU
    ends, device = time.monotonic() + WHOLE_SECONDS, "cpu" if arguments.dry_run else "cuda"
    print(f"{'':22}{'CPU s':>8}{'GPU s':>8}{'ratio':>8}{'peak MiB':>10}", flush=True)
    verdicts = []
    for section in SECTIONS:
        on_cpu = None if not section.cpu_seconds else child(section.name, "cpu", size, ends - time.monotonic())
        verdict, told = line(section, on_cpu, child(section.name, device, size, ends - time.monotonic()))
        print(told, flush=True)
        verdicts.append(verdict)
    return 1 if "FAIL" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
