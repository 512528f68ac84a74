"""The real models that are measured, each with its data; they lie in QUANTMILL_DATA, default ../shared/data."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.runner import DatasetSource

THREADS = 2
# 4 bits for weights and activations.
W4A4: dict[str, Any] = {
    "preset": "int8",
    "weight": {"dtype": "int4", "granularity": "per_channel"},
    "activation": {"dtype": "uint4"},
}


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


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def data_folder() -> Path:
    folder = Path(os.environ.get("QUANTMILL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (folder / CASES[0].model).is_file():
        sys.exit(f"no {CASES[0].model} in {folder}: set QUANTMILL_DATA to the folder with the real models and data")
    return folder


def source(folder: Path, part: tuple[str, PreprocessingSpec]) -> DatasetSource:
    return DatasetSource(path=str(folder / part[0]), preprocessing=part[1])
