"""Models and configs whose emitted bytes are kept: together they walk through every room of the quantizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.runner import DatasetSource
from tests.support.data import required_data_dir
from tests.support.provenance import without_provenance
from tests.support.tiny import make_model as make_tiny_model
from tests.unit.quantizer.random_networks import RandomNetwork
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

CLE = {"method": "cross_layer_equalization"}
SMOOTH = {"method": "smooth_quant"}
CORRECTION = {"method": "bias_correction"}
FULL = {"method": "bias_correction", "mode": "full"}
PER_TENSOR = {"granularity": "per_tensor"}
POWER_OF_TWO_NPU = {"preset": "xint8", "target": "amd_npu_cnn"}


@dataclass(frozen=True)
class Network:
    """A model and the samples for it.

    Attributes:
        model: file below the folder of real data, or a builder of a small one.
        arrays: the dataset below that folder, or a maker of arrays.
        preprocessing: of the dataset.
        taken: arrays to take, by the name they get.
    """

    model: str | Callable[[Path], None]
    arrays: str | Callable[[int], dict[str, np.ndarray]]
    taken: dict[str, str] = field(default_factory=dict)
    preprocessing: PreprocessingSpec = field(default_factory=PreprocessingSpec)

    @property
    def is_real(self) -> bool:
        """True if it needs the folder of real data."""
        return isinstance(self.model, str)


@dataclass(frozen=True)
class Case:
    """What is quantized and how."""

    network: str
    config: dict[str, Any]
    samples: int = 16


def _images(mean: tuple[float, ...], std: tuple[float, ...]) -> PreprocessingSpec:
    spec = InputSpec(array="images", layout="NHWC", scale=1 / 255, mean=mean, std=std)
    return PreprocessingSpec(inputs={"input": spec})


_IMAGENET = _images((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CIFAR10 = _images((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_PICTURES = {"images": "images", "labels": "labels"}
_LABELLED = PreprocessingSpec(inputs={})
_MNIST = PreprocessingSpec(inputs={"Input3": InputSpec(array="images", layout="NHW")})


def _random(seed: int) -> Network:
    built = RandomNetwork(seed)

    def arrays(samples: int) -> dict[str, np.ndarray]:
        numbers = np.random.default_rng(seed)
        return {name: numbers.standard_normal((samples, 3, 8, 8)).astype(np.float32) for name in built.inputs}

    return Network(lambda path: onnx.save(built.model, path), arrays)


def _tiny(samples: int) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(1)
    images = numbers.normal(size=(samples, 3, 8, 8)).astype(np.float32)
    return {"x": images, "labels": numbers.integers(0, 5, samples)}


NETWORKS = {
    "mobilenet_v1": Network("imagenet/mobilenet_v1_0.75_224.onnx", "imagenet/calibration.npz", _PICTURES, _IMAGENET),
    "resnet20": Network("cifar10/resnet20.onnx", "cifar10/calibration.npz", _PICTURES, _CIFAR10),
    "resnet32_fp16": Network("zoo/derived_resnet32_fp16.onnx", "cifar10/calibration.npz", _PICTURES, _CIFAR10),
    "kws": Network(
        "speech/kws_dscnn.onnx",
        "speech/kws_dscnn_mfcc49x10.npz",
        {"calib": "input", "calib_labels": "labels"},
        _LABELLED,
    ),
    "kwt1": Network("speech/kwt1.onnx", "speech/kwt1_calibration.npz", {"inputs": "input", "labels": "labels"}),
    "mnist": Network(
        "mnist/mnist_cntk_opset8.onnx", "mnist/mnist.npz", {"calib": "images", "calib_labels": "labels"}, _MNIST
    ),
    "stories": Network("text/stories260K.onnx", "text/stories_c.npz", {"ids": "ids"}),
    "tiny": Network(make_tiny_model, _tiny),
    "random_8": _random(8),
    "random_21": _random(21),
}

CASES = {
    "mobilenet_v1 int8": Case("mobilenet_v1", {"preset": "int8"}),
    "mobilenet_v1 xint8 equalized": Case("mobilenet_v1", {**POWER_OF_TWO_NPU, "algorithms": [CLE, CORRECTION]}),
    "mobilenet_v1 per tensor, limits exact, corrected layer by layer": Case(
        "mobilenet_v1",
        {"preset": "plain", "weight": PER_TENSOR, "algorithms": [{**CLE, "replace_relu6": "per_channel"}, FULL]},
    ),
    "tiny outliers split": Case(
        "tiny",
        {
            "preset": "plain",
            "outlier_ratio": 1.4,
            "algorithms": [{"method": "outlier_channels", "treatment": "split", "growth": 1.0, "accept": "always"}],
        },
    ),
    "resnet20 w4a8": Case("resnet20", {"preset": "w4a8"}, 64),
    "resnet20 xint8 adaround": Case("resnet20", {**POWER_OF_TWO_NPU, "algorithms": [{"method": "adaround"}]}, 64),
    "resnet20 adaquant from moments": Case(
        "resnet20",
        {"preset": "plain", "algorithms": [{"method": "adaquant", "solver": "moments", "accept": "always"}]},
        64,
    ),
    "resnet20 mixed": Case(
        "resnet20",
        {
            "preset": "plain",
            "weight": PER_TENSOR,
            "algorithms": [
                CLE,
                {
                    "method": "mixed_precision",
                    "combination": "A16W16_A8W8",
                    "goal": {"kind": "distance", "metric": "sqnr", "limit": 20},
                },
                CORRECTION,
            ],
        },
        64,
    ),
    "resnet20 sensitivity, qoperator": Case(
        "resnet20", {"preset": "plain", "format": "qoperator", "algorithms": [{"method": "sensitivity"}]}, 32
    ),
    "resnet20 mixed block types": Case("resnet20", {"preset": "bf16_mixed_bfp16"}, 32),
    "resnet32 float16, percentile": Case("resnet32_fp16", {"preset": "int8_percentile"}, 32),
    "kws autopilot": Case(
        "kws",
        {
            "preset": "int8",
            "algorithms": [
                {
                    "method": "autopilot",
                    "objective": "size",
                    "goal": {"kind": "drop", "metric": "top1", "max_drop": 1.0},
                    "budget": {"max_trials": 6},
                }
            ],
        },
        128,
    ),
    "kws entropy": Case("kws", {"preset": "plain", "activation": {"calibration": {"method": "entropy"}}}, 64),
    "kws mxint8 adaquant": Case("kws", {"preset": "mxint8_adaquant"}, 32),
    "kws tensorrt": Case("kws", {"preset": "int8_symmetric", "target": "tensorrt"}, 64),
    "kwt1 transformer": Case("kwt1", {"preset": "int8_transformer"}),
    "kwt1 dynamic smooth": Case(
        "kwt1",
        {
            "preset": "int8_dynamic",
            "algorithms": [{"method": "smooth_quant", "insert_mul": True, "loud_in_float": False}],
        },
        32,
    ),
    "mnist npu accurate": Case("mnist", {"preset": "npu_int8_accurate"}, 64),
    "mnist float16": Case("mnist", {"preset": "float16_model"}),
    "stories int8": Case("stories", {"preset": "int8"}, 8),
    "stories awq": Case("stories", {"preset": "int4_weights", "algorithms": [{"method": "awq"}]}, 16),
    "tiny int16 scales": Case(
        "tiny", {"preset": "plain", "activation": {"scale": "int16"}, "weight": {"scale": "int16"}}
    ),
    "tiny a16w4, overridden": Case(
        "tiny",
        {
            "preset": "a16w8_per_channel",
            "weight": {"dtype": "int4"},
            "overrides": [{"match": {"node": "gemm"}, "weight": {"dtype": "int16"}}],
        },
    ),
    "random 8 xint8": Case("random_8", {**POWER_OF_TWO_NPU, "algorithms": [CLE, {"method": "adaround"}]}),
    "random 21 qnn": Case("random_21", {"preset": "a16w8", "target": "qnn"}),
}


def digest(case: Case, folder: Path) -> tuple[str, str]:
    """Head of the sha256 of the model that a case emits, and what became of its algorithms; ``folder`` takes files."""
    network = NETWORKS[case.network]
    if isinstance(network.model, str):
        model = required_data_dir() / network.model
    else:
        model = folder / "model.onnx"
        network.model(model)
    if isinstance(network.arrays, str):
        with np.load(required_data_dir() / network.arrays) as stored:
            taken = network.taken or {name: name for name in stored.files}
            arrays = {to: stored[name][: case.samples] for name, to in taken.items()}
    else:
        arrays = network.arrays(case.samples)
    np.savez(folder / "samples.npz", **arrays)
    source = DatasetSource(path=str(folder / "samples.npz"), preprocessing=network.preprocessing)
    np.savez(folder / "first.npz", **{name: array[:1] for name, array in arrays.items()})
    first = DatasetSource(path=str(folder / "first.npz"), preprocessing=network.preprocessing)
    config = parse_config({"evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}, **case.config})
    # The report's figures are no part of the bytes; only a search looks at them.
    searches = any(step.method in ("autopilot", "mixed_precision") for step in config.algorithms)
    result = quantize(model, config, source, source if searches else first, run=SilentRun(), threads=1)
    fates = [f"{figures.method} {'kept' if figures.kept else 'undone'}" for figures in result.report.algorithms]
    # what the file says of its making tells of files and libraries, too
    return hashlib.sha256(without_provenance(result.model)).hexdigest()[:16], ", ".join(fates)
