"""What the default recipe costs on real networks and real data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS

# A tenth of a point is a sample: enough to see a point lost.
FEWER = 1000
Mapping = tuple[str, PreprocessingSpec]


def images(mean: tuple[float, ...], std: tuple[float, ...]) -> PreprocessingSpec:
    spec = InputSpec(array="images", layout="NHWC", scale=1 / 255, mean=mean, std=std)
    return PreprocessingSpec(inputs={"input": spec})


def part(name: str, *, to: str, layout: str | None = None) -> PreprocessingSpec:
    """One half of a file that holds both: arrays ``calib`` and ``test`` with their labels."""
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
    # 86.07 -> at least 84.3
    "mobilenet_v1": Case(
        "imagenet/mobilenet_v1_0.75_224.onnx",
        ("imagenet/calibration.npz", IMAGENET),
        ("imagenet/evaluation.npz", IMAGENET),
        438,
        86.07,
        86.07 - 84.3,
    ),
    "resnet20": Case(
        "cifar10/resnet20.onnx",
        ("cifar10/calibration.npz", CIFAR10),
        ("cifar10/evaluation.npz", CIFAR10),
        1500,
        80.67,
        0.3,
    ),
    "kws_dscnn": Case(
        "speech/kws_dscnn.onnx",
        ("speech/kws_dscnn_mfcc49x10.npz", part("calib", to="input")),
        ("speech/kws_dscnn_mfcc49x10.npz", part("test", to="input")),
        4000,
        91.52,
        0.5,
    ),
    "mnist": Case(
        "mnist/mnist_cntk_opset8.onnx",
        ("mnist/mnist.npz", part("calib", to="Input3", layout="NHW")),
        ("mnist/mnist.npz", part("test", to="Input3", layout="NHW")),
        3000,
        98.1,
        0.2,
    ),
}


def source(folder: Path, mapping: Mapping) -> DatasetSource:
    return DatasetSource(path=str(folder / mapping[0]), preprocessing=mapping[1])


def first(samples: int, mapping: Mapping, folder: Path) -> DatasetSource:
    """As many samples of the dataset, in a file in ``folder``."""
    with np.load(required_data_dir() / mapping[0]) as arrays:
        np.savez(folder / "first.npz", **{name: array[:samples] for name, array in arrays.items() if array.ndim})
    return source(folder, ("first.npz", mapping[1]))


def report_of(case: Case, preset: str, tmp_path: Path, samples: int | None = None) -> Report:
    folder = required_data_dir()
    settings = parse_config(
        {"preset": preset, "evaluation": {"latency_runs": 1, "layer_samples": 2, "advice_seconds": 0}}
    )
    calibration = source(folder, case.calibration)
    evaluation = first(samples or case.samples, case.evaluation, tmp_path)
    return quantize(folder / case.model, settings, calibration, evaluation, run=SilentRun(), threads=1).report


@pytest.mark.parametrize("name", CASES)
def test_the_default_recipe_keeps_the_accuracy(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    report = report_of(case, "int8", tmp_path)
    before, after = report.float_.metrics["top1"], report.quantized.metrics["top1"]
    assert report.fidelity.samples == case.samples
    assert before == pytest.approx(case.float_top1, abs=0.1)
    assert before - after <= case.max_drop
    assert report.fidelity.sqnr_db > 10


@pytest.mark.parametrize("preset", ["int8_percentile", "int8_per_tensor", "int8_symmetric"])
@pytest.mark.parametrize("name", ["kws_dscnn", "mnist"])
def test_the_other_recipes_keep_it_too(name: str, preset: str, tmp_path: Path) -> None:
    report = report_of(CASES[name], preset, tmp_path, FEWER)
    assert report.float_.metrics["top1"] - report.quantized.metrics["top1"] <= 1.0
