"""CPU seconds of whole jobs by the number of nodes: prints a table of docs/benchmarks.md.

usage: python -m benchmarks.growth [--nodes N ...] [--networks NAME ...] [--profile]

Networks are generated, with tensors so small that work on the graph outweighs arithmetic. Every job runs in a process
of its own, on one thread. The exponent is the slope of log seconds over log nodes (least squares): 1 is linear. What
onnxruntime takes to make its sessions is told apart, since the engine cannot change it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NODES = (500, 1000, 2000, 4000, 8000)
_CHANNELS, _SAMPLES = 4, 4
# Stages that take less than this in the largest network are not told: they are chance.
_LEAST_SECONDS = 0.3


class Builder:
    """Nodes and constants of a network under way; every method returns the name of what its node makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, op_type: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        made = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, names, [made], f"{op_type}_{len(self.nodes)}", **attributes))
        return made

    def _constant(self, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array.astype(np.float32), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int, size: float = 0.5) -> np.ndarray:
        return self.random.normal(size=shape) * size

    def conv(self, x: str, size: float = 0.5) -> str:
        return self.node("Conv", x, self.weight(_CHANNELS, _CHANNELS, 1, 1, size=size), self.weight(_CHANNELS))

    def model(self, shape: Sequence[int], outputs: Sequence[str]) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "growth", ends, made, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def convolutions(nodes: int) -> onnx.ModelProto:
    """Residual blocks of convolutions."""
    made, x = Builder(), "x"
    while len(made.nodes) < nodes:
        inner = made.node("Relu", made.conv(x))
        x = made.node("Add", x, made.conv(inner, size=0.02))
    return made.model((_CHANNELS, 2, 2), [x])


def products(nodes: int, wide: float = 1.0) -> onnx.ModelProto:
    """Residual blocks of matrix products; ``wide`` makes one channel between them that much wider."""
    made, x = Builder(), "x"
    gain = np.array([wide, *[1.0] * (2 * _CHANNELS - 1)])
    while len(made.nodes) < nodes:
        inner = made.node("MatMul", x, made.weight(_CHANNELS, 2 * _CHANNELS) * gain)
        inner = made.node("Relu", inner)
        x = made.node("Add", x, made.node("MatMul", inner, made.weight(2 * _CHANNELS, _CHANNELS, size=0.02 / wide)))
    return made.model((_CHANNELS, _CHANNELS), [x])


def outliers(nodes: int) -> onnx.ModelProto:
    """The same with an outlier channel in every block."""
    return products(nodes, wide=60.0)


def heads(nodes: int) -> onnx.ModelProto:
    """Detection heads on one trunk: boxes with a grid and sizes, and scores."""
    made, found = Builder(), []
    trunk = made.node("Relu", made.conv("x"))
    while len(made.nodes) < nodes - 1:
        boxes = made.node("Add", made.conv(trunk), made.weight(1, _CHANNELS, 2, 2, size=20.0))
        sizes = made.node("Mul", made.node("Exp", made.conv(trunk)), np.array(8.0))
        scores = made.node("Sigmoid", made.conv(trunk))
        found.append(made.node("Concat", boxes, sizes, scores, axis=1))
    return made.model((_CHANNELS, 2, 2), [made.node("Concat", *found, axis=1)])


# By name: the network, and what the config sets beside the evaluation.
NETWORKS: dict[str, tuple[Callable[[int], onnx.ModelProto], dict[str, Any]]] = {
    "convolutions": (convolutions, {"preset": "int8"}),
    "products": (products, {"preset": "int8"}),
    "heads": (heads, {"preset": "int8"}),
    "outliers": (
        outliers,
        {"preset": "int8", "algorithms": [{"method": "outlier_channels"}, {"method": "bias_correction"}]},
    ),
    "notes": (convolutions, {"preset": "npu_int8"}),
}


def measured(network: str, nodes: int, profile: Path | None) -> dict[str, float]:
    """CPU seconds of one job: ``whole``, ``sessions`` of which onnxruntime takes to make its own, the rest by stage."""
    import onnxruntime as ort

    from service.contracts.config import parse_config
    from service.contracts.runner import DatasetSource
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run import progress
    from worker.quantizer.run.interface import SilentRun

    build, settings = NETWORKS[network]
    told: dict[str, float] = defaultdict(float)
    made = ort.InferenceSession.__init__

    def timed(*given: Any, **named: Any) -> None:
        begin = time.process_time()
        made(*given, **named)
        told["sessions"] += time.process_time() - begin

    config = parse_config({**settings, "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}})
    with tempfile.TemporaryDirectory() as scratch:
        path, data = Path(scratch) / "model.onnx", Path(scratch) / "data.npz"
        model = build(nodes)
        onnx.save(model, path)
        shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
        np.savez(data, x=np.random.default_rng(1).normal(size=(_SAMPLES, *shape)).astype(np.float32))
        samples = DatasetSource(path=str(data))
        with (
            mock.patch.object(ort.InferenceSession, "__init__", timed),
            mock.patch.object(
                progress, "time", SimpleNamespace(perf_counter=lambda: time.process_time() - told["sessions"])
            ),
        ):
            watch = cProfile.Profile() if profile is not None else None
            begin = _cpu_seconds()
            if watch is not None:
                watch.enable()
            report = quantize(path, config, samples, samples, run=SilentRun(), threads=1).report
            if watch is not None:
                watch.disable()
            told["whole"] = _cpu_seconds() - begin
            if watch is not None:
                pstats.Stats(watch).dump_stats(str(profile))
    for stage in report.stages:
        told[stage.name] += stage.seconds
    return dict(told)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _in_fresh_process(network: str, nodes: int, profile: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", "--one", network, str(nodes), *(["--profile"] * profile)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "whole, sessions left out": figures["whole"] - figures["sessions"]}


def exponent(nodes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of log seconds over log nodes."""
    return float(np.polyfit(np.log(nodes), np.log(np.maximum(seconds, 1e-4)), 1)[0])


def main(networks: Sequence[str], nodes: Sequence[int], profile: bool) -> None:
    print(f"| network | part | {' | '.join(f'{count:,}' for count in nodes)} | exponent |")
    print("|---" * (len(nodes) + 3) + "|")
    for network in networks:
        found = [_in_fresh_process(network, count, profile) for count in nodes]
        first = ("whole", "sessions", "whole, sessions left out")
        for part in (*first, *(name for name in found[-1] if name not in first)):
            seconds = [figures.get(part, 0.0) for figures in found]
            if seconds[-1] >= _LEAST_SECONDS:
                cells = " | ".join(f"{each:.2f}" for each in seconds)
                print(f"| {network} | {part} | {cells} | {exponent(nodes, seconds):.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES)
    parser.add_argument("--profile", action="store_true", help="write growth-NETWORK-NODES.prof of every job")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
        name, count = options.one
        file = Path(f"growth-{name}-{count}.prof") if options.profile else None
        print(json.dumps(measured(name, int(count), file)))
    else:
        main(options.networks, options.nodes, options.profile)
