"""AdaRound and AdaQuant beside AMD Quark's: top-1, seconds, memory; and how time grows with the number of layers.

usage: python -m benchmarks.finetune [--rows WORD ...] [--chain] [--quark-python PYTHON --quark-script SCRIPT]
                                                                 (needs QUANTMILL_DATA, default ../shared/data)

Every row is the emitted model, run by onnxruntime on the whole evaluation set; both tools run in a fresh process, one
after the other. "seconds" is all of quantizing without evaluation, "steps" what the algorithms add to calibration,
judging them included. SCRIPT is called as in benchmarks.calibration; where no Quark is given, the column shows what
BASELINE holds: what it was measured at before, on a machine of the same kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.calibration import quark
from benchmarks.cases import THREADS, case_of, data_folder, source

CLE: dict[str, Any] = {"method": "cross_layer_equalization"}
# In closed form: AdaRound finds the biases anew on the quantized network.
CORRECTION: dict[str, Any] = {"method": "bias_correction", "mode": "fast"}
ROUND: dict[str, Any] = {"method": "adaround"}
REFIT: dict[str, Any] = {**ROUND, "scale_refit": True}
# The settings of AMD Quark's own runs.
PAPER: dict[str, Any] = {
    **ROUND,
    "solver": "gradient",
    "batch_size": 2,
    "num_iterations": 1000,
    "reg_param": 0.01,
    "update_bias": False,
}
# As many samples as Quark's figures on CIFAR-10 were taken with.
FEW: dict[str, Any] = {"data_size": 200}
SMOOTH: dict[str, Any] = {"method": "smooth_quant"}
QUANT: dict[str, Any] = {"method": "adaquant"}
FROM_MOMENTS: dict[str, Any] = {**QUANT, "solver": "moments"}
XINT8: dict[str, Any] = {"preset": "xint8"}
PERCENTILE: dict[str, Any] = {
    "preset": "plain",
    "activation": {"calibration": {"method": "percentile", "percentile": 99.9999}},
    "weight": {"granularity": "per_tensor"},
}
NPU: dict[str, Any] = {
    "preset": "npu_int8",
    "activation": {"calibration": {"method": "percentile", "percentile": 99.99}},
}
W4: dict[str, Any] = {"preset": "w4a8"}
V1, V2, RESNET, KWT = "MobileNetV1 0.75", "MobileNetV2 1.0", "ResNet20", "KWT-1"
_STEPS = ("cross_layer_equalization", "smooth_quant", "bias_correction", "adaround", "adaquant")
_NO_ENGINE = ("evaluation", "layers", "latency", "advice")


@dataclass(frozen=True)
class Row:
    """One line: a recipe of ours, and the one of Quark that it is measured against.

    Attributes:
        least: top-1 that it should reach.
        quark: name of Quark's recipe in SCRIPT.
        faster: how many times faster than that it should be.
    """

    model: str
    recipe: str
    settings: dict[str, Any]
    algorithms: tuple[dict[str, Any], ...]
    least: float | None = None
    quark: str | None = None
    faster: float = 20.0


ROWS = (
    Row(V1, "XINT8, AdaRound", XINT8, (ROUND,), 82.5, "xint8_adaround"),
    Row(V1, "XINT8, AdaRound with scale refit", XINT8, (REFIT,), 82.5, "xint8_adaround"),
    Row(V1, "XINT8, CLE + BC + AdaRound", XINT8, (CLE, CORRECTION, ROUND), 85.5, "xint8_adaround"),
    Row(V1, "XINT8, CLE + BC + AdaRound with scale refit", XINT8, (CLE, CORRECTION, REFIT), 85.5, "xint8_adaround"),
    Row(V1, "A8W8 Percentile, AdaRound", PERCENTILE, (ROUND,), 80.0, "accurate"),
    Row(V1, "A8W8 Percentile, AdaRound with scale refit", PERCENTILE, (REFIT,), 80.0, "accurate"),
    Row(V2, "A8W8 Percentile, AdaRound", PERCENTILE, (ROUND,), 86.0, "accurate"),
    Row(V2, "A8W8 Percentile, AdaRound with scale refit", PERCENTILE, (REFIT,), 86.0, "accurate"),
    Row(V2, "A8W8 Percentile, CLE + BC + AdaRound", PERCENTILE, (CLE, CORRECTION, ROUND), 88.5, "accurate"),
    # Quark 0.13 has no 4-bit weights for Conv: "Only INT8, UINT8, INT16, and UINT16 are supported."
    Row(V2, "W4A8 per channel, CLE + AdaRound", W4, (CLE, ROUND), 82.0),
    Row(RESNET, "XINT8, AdaRound", XINT8, ({**ROUND, **FEW},), 80.3, "xint8_adaround", 10.0),
    Row(RESNET, "XINT8, AdaQuant", XINT8, ({**QUANT, **FEW},), 80.3, "xint8_adaquant", 20.0),
    Row(RESNET, "XINT8, AdaQuant from moments", XINT8, ({**FROM_MOMENTS, **FEW},), 80.3, "xint8_adaquant"),
    Row(KWT, "XINT8, AdaRound", XINT8, (ROUND,), 97.0, "xint8_adaround", 10.0),
    Row(KWT, "NPU int8 (Percentile), SmoothQuant + AdaRound", NPU, (SMOOTH, ROUND), 97.0, "xint8_adaround", 10.0),
    Row(V1, "gradients: XINT8, AdaRound", XINT8, (PAPER,), None, "xint8_adaround", 2.0),
    Row(RESNET, "gradients: XINT8, AdaRound", XINT8, ({**PAPER, **FEW},), None, "xint8_adaround", 2.0),
)
# (model, recipe of Quark): top-1, seconds, peak MiB.
BASELINE: dict[tuple[str, str], tuple[float, float, float]] = {
    (V1, "xint8_adaround"): (81.05, 251, 2428),
    (V1, "accurate"): (60.50, 415, 2432),
    (V2, "accurate"): (82.19, 415, 4296),
    (RESNET, "xint8_adaround"): (81.17, 36, 569),
    (RESNET, "xint8_adaquant"): (81.12, 204, 605),
}


def measure(row: Row) -> dict[str, Any]:
    """Our side of a row."""
    from service.contracts.config import parse_config
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run.interface import SilentRun

    folder, case = data_folder(), case_of(row.model)
    evaluation = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
    config = parse_config({**row.settings, "algorithms": list(row.algorithms), "evaluation": evaluation})
    calibration, evaluated = source(folder, case.calibration), source(folder, case.evaluation)
    report = quantize(folder / case.model, config, calibration, evaluated, run=SilentRun(), threads=THREADS).report
    engine = [stage for stage in report.stages if stage.name not in _NO_ENGINE]
    return {
        "float": report.float_.metrics["top1"],
        "top1": report.quantized.metrics["top1"],
        "seconds": sum(stage.seconds for stage in engine),
        "steps": sum(stage.seconds for stage in engine if stage.name.startswith(_STEPS)),
        "peak_mib": max(stage.peak_rss_bytes for stage in engine) / 2**20,
        "undone": [outcome.method for outcome in report.algorithms if not outcome.kept],
        "risen": [
            name
            for outcome in report.algorithms
            for name, error in outcome.reconstruction.items()
            if error.after > error.before
        ],
    }


def chain_seconds(layers: int) -> dict[str, Any]:
    """Seconds that AdaRound takes on ``layers`` equal Conv and Relu nodes."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    from service.contracts.config import parse_config
    from service.contracts.runner import DatasetSource
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run.interface import SilentRun

    random = np.random.default_rng(0)
    channels = 32
    nodes, weights = [], []
    for k in range(layers):
        weight = random.standard_normal((channels, channels, 3, 3)).astype(np.float32) * (2 / (9 * channels)) ** 0.5
        weights.append(numpy_helper.from_array(weight, f"w{k}"))
        weights.append(numpy_helper.from_array(np.zeros(channels, np.float32), f"b{k}"))
        pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        nodes.append(helper.make_node("Conv", [f"x{k}", f"w{k}", f"b{k}"], [f"c{k}"], f"conv{k}", **pads))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"x{k + 1}"], f"relu{k}"))
    shape = ["n", channels, 16, 16]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    with tempfile.TemporaryDirectory() as scratch:
        path, data = Path(scratch) / "chain.onnx", Path(scratch) / "data.npz"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        np.savez(data, x0=random.standard_normal((64, channels, 16, 16)).astype(np.float32))
        config = parse_config(
            {**XINT8, "algorithms": [ROUND], "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}}
        )
        samples = DatasetSource(path=str(data))
        report = quantize(path, config, samples, samples, run=SilentRun(), threads=THREADS).report
    return {"seconds": sum(stage.seconds for stage in report.stages if stage.name == "adaround")}


def _in_fresh_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.finetune", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _line(row: Row, ours: dict[str, Any], theirs: tuple[float, float, float] | None) -> str:
    undone = f" (undone: {', '.join(ours['undone'])})" if ours["undone"] else ""
    risen = f" (error rose: {', '.join(ours['risen'])})" if ours["risen"] else ""
    cells = [
        row.model,
        row.recipe + undone + risen,
        f"{ours['float']:.2f}",
        f"{ours['top1']:.2f}",
        "-" if row.least is None else f"{row.least}",
        f"{ours['steps']:.1f}",
        f"{ours['seconds']:.1f}",
        f"{ours['peak_mib']:.0f}",
    ]
    if theirs is None:
        cells += ["-"] * 5
    else:
        top1, seconds, peak = theirs
        cells += [f"{top1:.2f}", f"{seconds:.0f}", f"{peak:.0f}"]
        cells += [f"{seconds / ours['seconds']:.1f} of {row.faster:.0f}", f"{peak / ours['peak_mib']:.1f}"]
    return "| " + " | ".join(cells) + " |"


def compare(arguments: argparse.Namespace) -> None:
    """Print the table."""
    print("| model | recipe | float | top-1 | at least | steps s | seconds | peak MiB ", end="")
    print("| Quark top-1 | Quark s | Quark MiB | times faster | times smaller |")
    print("|" + "---|" * 13)
    known = dict(BASELINE)
    with_quark = arguments.quark_python and arguments.quark_script
    if with_quark:
        known = {}
    for number, row in enumerate(ROWS):
        if not any(word in f"{row.model} {row.recipe}" for word in arguments.rows):
            continue
        ours = _in_fresh_process("--one", str(number))
        key = (row.model, row.quark or "")
        if with_quark and row.quark is not None and key not in known:
            found = quark(data_folder(), row.model, row.quark, arguments.quark_python, arguments.quark_script)
            known[key] = (found["top1"], found["quantize"], found["peak_rss_bytes"] / 2**20)
        print(_line(row, ours, known.get(key)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[""], help="words of the rows wanted")
    parser.add_argument("--chain", action="store_true", help="time chains of 10, 20, 40 and 80 equal layers instead")
    parser.add_argument("--quark-python", default=os.environ.get("QUANTMILL_QUARK_PYTHON"))
    parser.add_argument("--quark-script", default=os.environ.get("QUANTMILL_QUARK_SCRIPT"))
    parser.add_argument("--one", help="internal: measure our side of a row and print JSON")
    arguments = parser.parse_args()
    if arguments.one is not None:
        kind, _, layers = arguments.one.partition(" ")
        print(json.dumps(chain_seconds(int(layers)) if kind == "chain" else measure(ROWS[int(kind)])))
    elif arguments.chain:
        print("| layers | AdaRound s | s per layer |\n|---|---|---|")
        for layers in (10, 20, 40, 80):
            seconds = _in_fresh_process("--one", f"chain {layers}")["seconds"]
            print(f"| {layers} | {seconds:.2f} | {seconds / layers:.3f} |", flush=True)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
