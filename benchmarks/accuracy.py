"""Accuracy, size and latency of a preset on real models; prints the table of the README.

usage: python -m benchmarks.accuracy [PRESET ...]      (needs QUANTMILL_DATA, default ../shared/data)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.calibration import THREADS, data_folder
from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from worker.quantizer.pipeline import quantize
from worker.quantizer.run import SilentRun


def images(mean: tuple[float, ...], std: tuple[float, ...]) -> PreprocessingSpec:
    spec = InputSpec(array="images", layout="NHWC", scale=1 / 255, mean=mean, std=std)
    return PreprocessingSpec(inputs={"input": spec})


def arrays(name: str, spec: InputSpec, labels: str | None = None) -> PreprocessingSpec:
    return PreprocessingSpec(inputs={name: spec}, labels=labels)


HALF = images((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = images((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KWS, MNIST = "speech/kws_dscnn_mfcc49x10.npz", "mnist/mnist.npz"


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    calibration: tuple[str, PreprocessingSpec]
    evaluation: tuple[str, PreprocessingSpec]


def same(model: str, folder: str, prefix: str, spec: PreprocessingSpec, name: str) -> Case:
    return Case(name, model, (f"{folder}/{prefix}calibration.npz", spec), (f"{folder}/{prefix}evaluation.npz", spec))


CASES = (
    same("imagenet/mobilenet_v1_0.75_224.onnx", "imagenet", "", HALF, "MobileNetV1 0.75"),
    same("imagenet/mobilenet_v2_1.0_224.onnx", "imagenet", "", HALF, "MobileNetV2 1.0"),
    same("cifar10/resnet20.onnx", "cifar10", "", IMAGENET, "ResNet20"),
    same("cifar10/resnet32.onnx", "cifar10", "", IMAGENET, "ResNet32"),
    Case(
        "KWS DS-CNN",
        "speech/kws_dscnn.onnx",
        (KWS, arrays("input", InputSpec(array="calib"), "calib_labels")),
        (KWS, arrays("input", InputSpec(array="test"), "test_labels")),
    ),
    same("speech/kwt1.onnx", "speech", "kwt1_", arrays("input", InputSpec(array="inputs")), "KWT-1"),
    Case(
        "MNIST CNN",
        "mnist/mnist_cntk_opset8.onnx",
        (MNIST, arrays("Input3", InputSpec(array="calib", layout="NHW"), "calib_labels")),
        (MNIST, arrays("Input3", InputSpec(array="test", layout="NHW"), "test_labels")),
    ),
)


def measure(folder: Path, case: Case, preset: str) -> Report:
    def source(part: tuple[str, PreprocessingSpec]) -> DatasetSource:
        return DatasetSource(path=str(folder / part[0]), preprocessing=part[1])

    config = parse_config({"preset": preset})
    calibration, evaluation = source(case.calibration), source(case.evaluation)
    return quantize(folder / case.model, config, calibration, evaluation, run=SilentRun(), threads=THREADS).report


def main() -> None:
    folder = data_folder()
    for preset in sys.argv[1:] or ["int8"]:
        print(f"\npreset {preset}\n")
        print("| model | float top-1 | quantized top-1 | SQNR dB | size | latency | quantize s |")
        print("|---|---|---|---|---|---|---|")
        for case in CASES:
            report = measure(folder, case, preset)
            before, after = report.float_, report.quantized
            speed = (before.latency_ms or 0) / (after.latency_ms or 1)
            seconds = sum(s.seconds for s in report.stages if s.name not in ("evaluation", "layers", "latency"))
            print(
                f"| {case.name} | {before.metrics['top1']:.2f} | {after.metrics['top1']:.2f} "
                f"| {report.fidelity.sqnr_db} | 1/{before.size_bytes / after.size_bytes:.2f} "
                f"| 1/{speed:.2f} | {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
