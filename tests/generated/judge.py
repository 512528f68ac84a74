"""What is asked of a network that was quantized: that it is there, valid, what it was, and as near as peers come."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import QuantmillError
from service.contracts.runner import DatasetSource
from tests.generated import recipe
from tests.generated.network import Network
from tests.generated.parts import SAMPLES, Array
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.written import child, program

# Behind a peer by more than this, and worse than this, something is wrong.
_BEHIND_DB, _GOOD_DB = 6.0, 25.0
# Scales that are powers of two.
_POWERS_BEHIND_DB = 18.0
# Behind them a hair's breadth is a world apart: what one quantizer reaches says nothing of another.
_JUMPS = {
    "ArgMax", "Ceil", "Div", "Floor", "Hardmax", "Less", "Log", "LpNormalization", "MeanVarianceNormalization",
    "Reciprocal", "Round", "Shrink", "Sign", "ThresholdedRelu",
}  # fmt: skip
# Of the two ways to run the file.
_APART_DB, _ALIKE_DB, _CLOSE_DB = 6.0, 60.0, 45.0


@dataclass(frozen=True)
class Verdict:
    """What became of one seed; ``fault`` is its kind, None where nothing is wrong."""

    seed: int
    fault: str | None = None
    detail: str = ""
    sqnr_db: float | None = None


def judged(seed: int) -> Verdict:
    """Draw a network and a config, quantize, and look at what came of it."""
    network = Network(seed)
    model = network.model
    if not network.nodes or not run(model, network.feeds):
        return Verdict(seed, "no float model")
    config = recipe.draw(seed, [node.op_type for node in network.nodes])
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = quantized(model, network.feeds, config, Path(folder))
        except QuantmillError as error:
            return Verdict(seed, f"refused: {error.code}", str(error))
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            where = traceback.extract_tb(error.__traceback__)[-1]
            return Verdict(
                seed, f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}", traceback.format_exc()
            )
    return looked_at(seed, network, model, config, result)


class _OneProcess(SilentRun):
    def try_written(self, folder: Path) -> int:
        program.main(folder)
        return 0


def quantized(model: onnx.ModelProto, feeds: dict[str, Array], config: QuantizationConfig, folder: Path) -> Result:
    """The whole job; both ways of running are tried inside the process, which saves its start."""
    onnx.save(model, folder / "float.onnx")
    np.savez(folder / "data.npz", allow_pickle=False, **{f"a{k}": array for k, array in enumerate(feeds.values())})
    inputs = {name: {"array": f"a{k}"} for k, name in enumerate(feeds)}
    source = DatasetSource(
        path=str(folder / "data.npz"), preprocessing=PreprocessingSpec.model_validate({"inputs": inputs})
    )
    with mock.patch(f"{child.__name__}.subprocess.Popen", side_effect=PermissionError):
        return quantize(folder / "float.onnx", config, source, run=_OneProcess(), threads=1)


def looked_at(
    seed: int, network: Network, model: onnx.ModelProto, config: QuantizationConfig, result: Result
) -> Verdict:
    """What is wrong with a quantized model."""
    emitted = onnx.load_from_string(result.model)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # noqa: BLE001 - the checker does not take the float model either
        pass
    else:
        try:
            onnx.checker.check_model(emitted, full_check=True)
        except Exception as error:  # noqa: BLE001 - the checker's errors have no common base
            return Verdict(seed, "not valid", str(error))
    float_ = run(model, network.feeds)
    float16_nodes = {
        value.name for value in emitted.graph.input if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    }
    feeds = {
        name: array.astype(np.float16) if name in float16_nodes else array for name, array in network.feeds.items()
    }
    if {value.name for value in emitted.graph.input} - _held(emitted) != set(network.feeds):
        return Verdict(seed, "other inputs")
    ways = [run(emitted, feeds, optimized=optimized) for optimized in (True, False)]
    if not ways[0] or not float_:
        return Verdict(seed, "does not run", str(ways[0]))
    if list(ways[0]) != list(float_) or any(ways[0][name].shape != float_[name].shape for name in float_):
        return Verdict(seed, "other outputs")
    ours = worst_db(float_, ways[0])
    if ways[1]:
        exact = worst_db(float_, ways[1])
        if (
            worst_db(ways[1], ways[0]) < _ALIKE_DB
            and ours < _CLOSE_DB
            and exact - ours > _APART_DB
            and result.report.verdict != "fail"
        ):
            return Verdict(seed, "computed otherwise", f"{exact:.1f} dB plain, {ours:.1f} dB optimized", ours)
    comparable = _is_8_bit(config) and config.target != "amd_npu_cnn"  # whose rules go beyond types
    if ours < _GOOD_DB and comparable and not _JUMPS & {node.op_type for node in network.nodes}:
        theirs = peer_db(model, network.feeds, float_)
        if theirs is not None and theirs - ours > (_POWERS_BEHIND_DB if _has_powers(config) else _BEHIND_DB):
            return Verdict(seed, "behind", f"{ours:.1f} dB, the peer {theirs:.1f} dB", ours)
    return Verdict(seed, sqnr_db=ours)


def _has_powers(config: QuantizationConfig) -> bool:
    """True if scales are powers of two."""
    return config.target.startswith("amd_npu") or "power_of_two" in (config.activation.scale, config.weight.scale)


def _held(model: onnx.ModelProto) -> set[str]:
    return {held.name for held in model.graph.initializer}


def _is_8_bit(config: QuantizationConfig) -> bool:
    kinds = [config.weight.dtype, *([config.activation.dtype] if config.mode == "static" else [])]
    return config.mode == "float16" or not any(kind.endswith("4") for kind in kinds)


def run(model: onnx.ModelProto, feeds: dict[str, Array], *, optimized: bool = True) -> dict[str, Array]:
    """Outputs by name; none: onnxruntime refuses it."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        if session.get_inputs()[0].shape[0] != 1:
            return dict(zip(names, session.run(names, feeds), strict=True))
        parts = [session.run(names, {name: array[k : k + 1] for name, array in feeds.items()}) for k in range(SAMPLES)]
        return {name: np.stack(found) for name, found in zip(names, zip(*parts, strict=True), strict=True)}
    except Exception:  # noqa: BLE001 - the runtime's errors have no common base
        return {}


def worst_db(reference: dict[str, Array], other: dict[str, Array]) -> float:
    """SQNR of the worst output of floats."""
    found = [200.0]
    for name, array in reference.items():
        x, y = array.astype(np.float64), other[name].astype(np.float64)
        signal, noise = float((x**2).sum()), float(((x - y) ** 2).sum())
        if array.dtype.kind == "f" and signal:
            found.append(10 * np.log10(signal / noise) if noise else 200.0)
    return float(np.nan_to_num(min(found), nan=-200.0))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: dict[str, Array]) -> None:
        self._batches = iter([{name: array[k : k + 1] for name, array in feeds.items()} for k in range(SAMPLES)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def peer_db(model: onnx.ModelProto, feeds: dict[str, Array], float_: dict[str, Array]) -> float | None:
    """What onnxruntime's own quantizer reaches; None: it fails on the model."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        logging.disable(logging.WARNING)
        onnx.save(model, Path(folder) / "float.onnx")
        try:
            quantize_static(
                f"{folder}/float.onnx",
                f"{folder}/peer.onnx",
                _Reader(feeds),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            found = run(onnx.load(f"{folder}/peer.onnx"), feeds)
        except Exception:  # noqa: BLE001 - it fails in many ways
            return None
        finally:
            logging.disable(logging.NOTSET)
    return worst_db(float_, found) if found and all(found[k].shape == float_[k].shape for k in float_) else None
