"""What the default recipe costs on real networks and real data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.runner import DatasetSource
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS

Mapping = tuple[str, PreprocessingSpec]


def images(mean: tuple[float, ...], std: tuple[float, ...]) -> PreprocessingSpec:
    spec = InputSpec(array="images", layout="NHWC", scale=1 / 255, mean=mean, std=std)
    return PreprocessingSpec(inputs={"input": spec})


def part(name: str, *, to: str, layout: str | None = None) -> PreprocessingSpec:
    return PreprocessingSpec(inputs={to: InputSpec(array=name, layout=layout)}, labels=f"{name}_labels")


IMAGENET = images((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CIFAR10 = images((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Case:
    model: str
    calibration: Mapping
    evaluation: Mapping
    samples: int
    float_top1: float
    max_drop: float


CASES = {
    "mobilenet_v1": Case(
        "imagenet/mobilenet_v1_0.75_224.onnx",
        ("imagenet/calibration.npz", IMAGENET),
        ("imagenet/evaluation.npz", IMAGENET),
        samples=438,
        float_top1=86.07,
        max_drop=86.07 - 84.3,
    ),
    "resnet20": Case(
        "cifar10/resnet20.onnx",
        ("cifar10/calibration.npz", CIFAR10),
        ("cifar10/evaluation.npz", CIFAR10),
        samples=1500,
        float_top1=80.67,
        max_drop=0.3,
    ),
    "kws_dscnn": Case(
        "speech/kws_dscnn.onnx",
        ("speech/kws_dscnn_mfcc49x10.npz", part("calib", to="input")),
        ("speech/kws_dscnn_mfcc49x10.npz", part("test", to="input")),
        samples=4000,
        float_top1=91.52,
        max_drop=0.5,
    ),
    "mnist": Case(
        "mnist/mnist_cntk_opset8.onnx",
        ("mnist/mnist.npz", part("calib", to="Input3", layout="NHW")),
        ("mnist/mnist.npz", part("test", to="Input3", layout="NHW")),
        samples=3000,
        float_top1=98.1,
        max_drop=0.2,
    ),
}


def source(folder: Path, mapping: Mapping) -> DatasetSource:
    return DatasetSource(path=str(folder / mapping[0]), preprocessing=mapping[1])


def first(samples: int, mapping: Mapping, folder: Path) -> DatasetSource:
    with np.load(required_data_dir() / mapping[0]) as arrays:
        np.savez(folder / "first.npz", **{name: array[:samples] for name, array in arrays.items() if array.ndim})
    return source(folder, ("first.npz", mapping[1]))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_default_recipe_keeps_the_accuracy(name: str, tmp_path: Path) -> None:
    case, folder = CASES[name], required_data_dir()
    quick = {"latency_runs": 1, "layer_samples": 2, "advice_seconds": 0}
    sources = source(folder, case.calibration), first(case.samples, case.evaluation, tmp_path)
    settings = parse_config({"preset": "int8", "evaluation": quick})
    report = quantize(folder / case.model, settings, *sources, run=SilentRun(), threads=1).report
    before, after = report.float_.metrics["top1"], report.quantized.metrics["top1"]
    assert report.fidelity.samples == case.samples
    assert before == pytest.approx(case.float_top1, abs=0.1)
    assert before - after <= case.max_drop
    assert report.fidelity.sqnr_db > 10
