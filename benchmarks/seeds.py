"""The rows of AMD Quark's own result tables, for the networks and pictures at hand.

usage: python -m benchmarks.seeds [--models NAME ...] [--recipes NAME ...] [--no-resnet50]
           [--quark-python PYTHON --quark-script SCRIPT]            (needs QUANTMILL_DATA, default ../shared/data)

Every row runs in a fresh process. "CPU" is a recipe without the NPU's rules, "NPU" the same with them. Top-1 and top-5
in percent, size in MB (10^6 bytes), seconds of the engine from opening the file to the quantized model, peak memory in
MiB.

ResNet50 is the real one in shape alone: its weights are random, so that it has no accuracy. Its rows tell speed,
memory, size and the distance of the outputs (SQNR).

AMD Quark runs the same recipes where it is given, as in benchmarks.calibration: SCRIPT RECIPE MODEL.onnx
CALIBRATION.npy OUT.onnx --size N, which prints a line "JSON {...}" with seconds and peak_mib; RECIPE is a key of
RECIPES with underscores. A recipe that the script does not know is told and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.calibration import preprocessed
from benchmarks.cases import THREADS, case_of, data_folder, source

MODELS = ("MobileNetV1 0.75", "MobileNetV2 1.0", "ResNet20", "ResNet32")
RESNET50 = "ResNet50 (random weights)"
_MB = 10**6
_NO_ENGINE = ("evaluation", "layers", "latency", "advice")
_INT8 = {"activation_type": "QuantType.QUInt8", "weight_type": "QuantType.QInt8"}
_MIN_MSE = {"calibrate_method": "PowerOfTwoMethod.MinMSE", **_INT8}
_NPU = {"enable_npu_cnn": True}
_SYMMETRIC = {"ActivationSymmetric": True}


def _finetuned(**options: Any) -> dict[str, Any]:
    return {"include_fast_ft": True, "extra_options": {**options, "FastFinetune": "DEFAULT_ADAROUND_PARAMS"}}


# Name of the row -> config of Quark's.
RECIPES: dict[str, Any] = {
    "A8W8": "A8W8",
    "INT8 CPU": {**_MIN_MSE, "extra_options": _SYMMETRIC},
    "INT8 NPU": "XINT8",
    "fast finetuning CPU": "INT8_CNN_ACCURATE",
    "fast finetuning NPU": {**_MIN_MSE, **_NPU, **_finetuned(**_SYMMETRIC)},
    "CLE CPU": {**_MIN_MSE, "include_cle": True, "extra_options": _SYMMETRIC},
    "CLE NPU": {**_MIN_MSE, **_NPU, "include_cle": True, "extra_options": _SYMMETRIC},
}


def measure(folder: Path, name: str, recipe: str) -> dict[str, Any]:
    """The figures of one row of ours; those of the float model under "float ..."."""
    from service.quark import read_config
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run.interface import SilentRun

    config = read_config(
        {
            "format": "quark",
            "config": RECIPES[recipe],
            "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0},
        }
    )
    with tempfile.TemporaryDirectory() as scratch:
        if name == RESNET50:
            model, calibration, evaluation = resnet50(Path(scratch)), random_images(Path(scratch)), None
        else:
            case = case_of(name)
            model = folder / case.model
            calibration, evaluation = source(folder, case.calibration), source(folder, case.evaluation)
        report = quantize(model, config, calibration, evaluation, run=SilentRun(), threads=THREADS).report
    engine = [stage for stage in report.stages if stage.name not in _NO_ENGINE]
    return {
        "top1": report.quantized.metrics.get("top1"),
        "top5": report.quantized.metrics.get("top5"),
        "float top1": report.float_.metrics.get("top1"),
        "float top5": report.float_.metrics.get("top5"),
        "float size": report.float_.size_bytes,
        "size": report.quantized.size_bytes,
        "sqnr": report.fidelity.sqnr_db,
        "seconds": sum(stage.seconds for stage in engine),
        "peak_rss_bytes": max(stage.peak_rss_bytes for stage in engine),
    }


def quark(folder: Path, name: str, recipe: str, python: str, script: str) -> dict[str, Any]:
    """The figures of the same row of Quark's."""
    import numpy as np

    from worker.quantizer.evaluation.command import evaluate_files
    from worker.quantizer.run.interface import SilentRun

    with tempfile.TemporaryDirectory() as scratch:
        calibration, out = Path(scratch) / "calibration.npy", Path(scratch) / "out.onnx"
        model = resnet50(Path(scratch)) if name == RESNET50 else folder / case_of(name).model
        if name == RESNET50:
            data = random_images(Path(scratch))
            samples = np.load(data.path)["input"]
        else:
            data, samples = source(folder, case_of(name).evaluation), preprocessed(folder, case_of(name))
        np.save(calibration, samples)
        command = [python, script, recipe.replace(" ", "_"), str(model), str(calibration), str(out)]
        done = subprocess.run([*command, "--size", str(len(samples))], capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("JSON ")]
        if done.returncode or not lines:
            return {"refused": (done.stderr.strip().splitlines() or ["no figures"])[-1][:200]}
        told = json.loads(lines[-1].removeprefix("JSON "))
        found = evaluate_files(out, data, model, threads=THREADS, run=SilentRun())
    metrics = found["model"]["metrics"]
    return {
        "top1": metrics.get("top1"),
        "top5": metrics.get("top5"),
        "size": found["model"]["size_bytes"],
        "sqnr": found["fidelity"]["sqnr_db"],
        "seconds": told["seconds"],
        "peak_rss_bytes": told["peak_mib"] * 2**20,
    }


def resnet50(folder: Path, *, seed: int = 0) -> Path:
    """ResNet50 (v1.5) for 224 x 224, with random weights scaled so that no layer blows up or dies: [N,3,224,224]."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(seed)
    nodes: list[Any] = []
    weights: list[Any] = []

    def conv(value: str, channels: tuple[int, int], kernel: int, stride: int, gain: float = 1.0) -> str:
        place = f"conv{len(weights)}"
        inputs, outputs = channels
        shape = (outputs, inputs, kernel, kernel)
        scale = gain * np.sqrt(2.0 / (inputs * kernel * kernel))
        array = (generator.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"{place}.weight"))
        bias = (0.1 * generator.standard_normal(outputs)).astype(np.float32)
        weights.append(numpy_helper.from_array(bias, f"{place}.bias"))
        attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "kernel_shape": [kernel] * 2}
        names = [value, f"{place}.weight", f"{place}.bias"]
        nodes.append(helper.make_node("Conv", names, [place], place, **attributes))
        return place

    def relu(value: str) -> str:
        nodes.append(helper.make_node("Relu", [value], [f"{value}.relu"], f"{value}.relu"))
        return f"{value}.relu"

    value = relu(conv("input", (3, 64), 7, 2))
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes.append(helper.make_node("MaxPool", [value], ["pool"], "pool", **pool))
    value, width = "pool", 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            found = relu(conv(value, (width, inner), 1, 1))
            found = relu(conv(found, (inner, inner), 3, stride))
            found = conv(found, (inner, 4 * inner), 1, 1, 0.3)
            other = value if block else conv(value, (width, 4 * inner), 1, stride, 0.7)
            nodes.append(helper.make_node("Add", [found, other], [f"{found}.add"], f"{found}.add"))
            value, width = relu(f"{found}.add"), 4 * inner
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["average"], "average"))
    nodes.append(helper.make_node("Flatten", ["average"], ["flat"], "flat"))
    dense = (generator.standard_normal((1000, width)) / np.sqrt(width)).astype(np.float32)
    weights.append(numpy_helper.from_array(dense, "fc.weight"))
    weights.append(numpy_helper.from_array(np.zeros(1000, np.float32), "fc.bias"))
    nodes.append(helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["output"], "fc", transB=1))
    graph = helper.make_graph(
        nodes,
        "resnet50",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 1000])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "resnet50.onnx")
    return folder / "resnet50.onnx"


def random_images(folder: Path, count: int = 32) -> Any:
    """Smooth random pictures, which are nearer to real ones than noise: an .npz with 'input' [n,3,224,224]."""
    import numpy as np

    from service.contracts.runner import DatasetSource

    coarse = np.random.default_rng(1).standard_normal((count, 3, 28, 28)).astype(np.float32)
    np.savez(folder / "images.npz", input=coarse.repeat(8, axis=2).repeat(8, axis=3))
    return DatasetSource(path=str(folder / "images.npz"))


def in_fresh_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.seeds", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def row(label: str, who: str, figures: dict[str, Any]) -> str:
    if "refused" in figures:
        return f"| {label} | {who} | - | - | - | - | - | {figures['refused']} |"

    def shown(key: str, form: str, unit: float = 1.0) -> str:
        value = figures.get(key)
        return "-" if value is None else f"{value / unit:{form}}"

    cells = (
        shown("top1", ".2f"),
        shown("top5", ".2f"),
        shown("sqnr", ".1f"),
        shown("size", ".2f", _MB),
        shown("seconds", ".1f"),
        shown("peak_rss_bytes", ".0f", 2**20),
    )
    return "| " + " | ".join((label, who, *cells)) + " |"


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Print the table of one model."""
    print(
        f"\n{name}\n\n| row | by | top-1 % | top-5 % | SQNR dB | MB | s | peak MiB |\n|---|---|---|---|---|---|---|---|"
    )
    tools = ["--quark-python", arguments.quark_python or "", "--quark-script", arguments.quark_script or ""]
    for place, recipe in enumerate(arguments.recipes):
        ours = in_fresh_process("--one", recipe, "--models", name)
        if not place:
            float_ = {"top1": ours["float top1"], "top5": ours["float top5"], "size": ours["float size"]}
            print(row("float", "", float_))
        print(row(recipe, "Quantmill", ours), flush=True)
        if arguments.quark_python and arguments.quark_script:
            theirs = in_fresh_process("--one", recipe, "--by-quark", "--models", name, *tools)
            print(row(recipe, "Quark", theirs), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=(*MODELS, RESNET50))
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--no-resnet50", action="store_true")
    parser.add_argument("--quark-python", default=os.environ.get("QUANTMILL_QUARK_PYTHON"))
    parser.add_argument("--quark-script", default=os.environ.get("QUANTMILL_QUARK_SCRIPT"))
    parser.add_argument("--one", help="internal: measure one row and print JSON")
    parser.add_argument("--by-quark", action="store_true", help="internal: the row of Quark's")
    arguments = parser.parse_args()
    folder = data_folder()
    if not arguments.one:
        last = () if arguments.no_resnet50 or RESNET50 in arguments.models else (RESNET50,)
        for name in (*arguments.models, *last):
            compare(name, arguments)
        return
    name = arguments.models[0]
    if arguments.by_quark:
        figures = quark(folder, name, arguments.one, arguments.quark_python, arguments.quark_script)
    else:
        figures = measure(folder, name, arguments.one)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
