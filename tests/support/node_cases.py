"""ONNX's own tests of single operators as small models to quantize, and what became of quantizing them.

Every case of ``onnx.backend.test.case.node`` is a model of one operator, or of the body of an operator that is a
function, with inputs. The first float32 input stays the model's input and is its calibration data; the others become
constants, as weights are.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from service.contracts.config import parse_config
from service.contracts.errors import DatasetError, ModelError
from service.contracts.runner import DatasetSource
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime.faults import RUNTIME_ERRORS
from worker.quantizer.runtime.session import session_options

PRESETS = ("int8", "xint8", "int4_weights", "int8_dynamic", "float16_model")
# The latest that onnxruntime supports; of later opsets it says that they are under development.
_IR_VERSION, _OPSET = 10, 26
_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")

Feeds = dict[str, Any]  # an array, or for sequences and optionals a list or None


@dataclass(frozen=True, eq=False)
class NodeCase:
    """One test of an operator, by ONNX's name; ``expanded``: the model holds the body of the operator's function."""

    name: str
    op_type: str
    expanded: bool
    model: onnx.ModelProto  # of IR and opset versions that onnxruntime knows, as far as its operators are in them
    feeds: Feeds


@dataclass(frozen=True)
class Outcome:
    """What became of a case, and why, in a word and in full.

    runs: the quantized model runs, and its values are finite where the float model's are; refused: by an error that
    tells a fault of the data or of the float model; failed: anything else.
    """

    kind: Literal["runs", "refused", "failed"]
    why: str = ""
    detail: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.why}" if self.why else self.kind


@lru_cache(maxsize=1)
def node_cases() -> dict[str, NodeCase]:
    """All cases by name, in the order of ONNX. Takes seconds: ONNX computes the expected outputs of all of them."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy: casts of NaN and the like are what they test
        found: list[Any] = collect_testcases(None)
    op_types = {case.name: case.model.graph.node[0].op_type for case in found}
    cases = {}
    for case in found:
        operator = _EXPANDED.sub("", case.name)
        model, feeds = _with_constants(case.model, case.data_sets[0][0])
        op_type = op_types.get(operator, op_types[case.name])
        cases[case.name] = NodeCase(case.name, op_type, operator != case.name, model, feeds)
    return cases


def _with_constants(original: onnx.ModelProto, inputs: Sequence[Any]) -> tuple[onnx.ModelProto, Feeds]:
    """The model with all its inputs but one as initializers, as far as they are tensors."""
    model = onnx.ModelProto()
    model.CopyFrom(original)
    model.ir_version = min(model.ir_version, _IR_VERSION)
    _lower_opset(model)
    graph = model.graph
    fed = next((k for k, value in enumerate(inputs) if _may_feed(value)), 0)
    kept, feeds = [], {}
    for k, (info, value) in enumerate(zip(original.graph.input, inputs, strict=True)):
        tensor = _tensor(info, value)
        if k != fed and tensor is not None:
            graph.initializer.append(tensor)
            continue
        kept.append(info)
        feeds[info.name] = _array(value)
    del graph.input[:]
    graph.input.extend(kept)
    return model, feeds


def _lower_opset(model: onnx.ModelProto) -> None:
    """Down to the latest opset of onnxruntime, where the model is valid in it as well."""
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    for entry in lowered.opset_import:
        if entry.domain == "":
            entry.version = min(entry.version, _OPSET)
    try:
        onnx.checker.check_model(lowered)
    except onnx.checker.ValidationError:
        return
    model.CopyFrom(lowered)


def _may_feed(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.ndim > 0 and value.size > 0


def _array(value: Any) -> Any:
    """Tensors and numpy's scalars as arrays; sequences and None as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _tensor(info: onnx.ValueInfoProto, value: Any) -> onnx.TensorProto | None:
    """An initializer for an input; None if it is no tensor, or of a type that numpy does not tell."""
    if not info.type.HasField("tensor_type"):
        return None
    tensor = onnx.TensorProto()
    tensor.CopyFrom(value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(_array(value)))
    tensor.name = info.name
    return tensor if tensor.data_type == info.type.tensor_type.elem_type else None


def outcome(case: NodeCase, preset: str) -> Outcome:
    """Quantize a case on its own data, without an evaluation set, and run what comes."""
    arrays = {name: value for name, value in case.feeds.items() if isinstance(value, np.ndarray)}
    with tempfile.TemporaryDirectory() as name:
        model, data = Path(name) / "model.onnx", Path(name) / "calibration.npz"
        model.write_bytes(case.model.SerializeToString())
        np.savez(data, **arrays)  # type: ignore[arg-type]  # mypy takes a name for allow_pickle
        config = parse_config({"preset": preset, "evaluation": {"latency_runs": 1}})  # nobody reads the latency
        try:
            with np.errstate(all="ignore"):  # inputs at the ends of a type are what they test
                result = quantize(model, config, DatasetSource(path=str(data)), None, run=SilentRun(), threads=1)
        except (ModelError, DatasetError) as error:
            return _refusal(case, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an outcome
            return Outcome("failed", type(error).__name__, str(error))
    return _run(case, result)


def _refusal(case: NodeCase, error: ModelError | DatasetError) -> Outcome:
    """What is said of onnxruntime must hold for the float model as it came; else a model of ours is refused."""
    if "onnxruntime" in error.detail and isinstance(_float_outputs(case), list):
        return Outcome("failed", f"{error.code}, but the float model runs", error.detail)
    return Outcome("refused", error.code, error.detail)


def _run(case: NodeCase, result: Result) -> Outcome:
    """Judge the quantized model by the float one's outputs."""
    expected = _float_outputs(case)
    if isinstance(expected, str):
        return Outcome("failed", "a float model that does not run was quantized", expected)
    found = _outputs(result.model, case.feeds)
    if isinstance(found, str):
        return Outcome("failed", "the runtime refuses the quantized model", found)
    pairs = [pair for pair in zip(expected, found, strict=True) if all(isinstance(one, np.ndarray) for one in pair)]
    for reference, twin in pairs:
        if reference.dtype != twin.dtype:
            return Outcome("failed", "an output of another type", f"{reference.dtype} became {twin.dtype}")
        if reference.dtype.kind == "f" and _lost(reference, twin):
            told = f"finite values became {twin[~np.isfinite(twin)][:3]}"
            return Outcome("failed", "values that are not finite", told)
    if all(layer.reason is not None for layer in result.report.layers) and _repeats(case, expected):
        worst = min((_sqnr_db(reference, twin) for reference, twin in pairs), default=np.inf)
        if worst <= 0:
            return Outcome("failed", "nothing is quantized, and the outputs are others", f"SQNR {worst:.1f} dB")
    return Outcome("runs")


def _lost(reference: np.ndarray, twin: np.ndarray) -> bool:
    """True if values are not finite that were; in all, where the shape hangs on values and so is another."""
    if reference.shape == twin.shape:
        return bool((np.isfinite(reference) & ~np.isfinite(twin)).any())
    return bool(np.isfinite(reference).all() and not np.isfinite(twin).all())


def _sqnr_db(reference: np.ndarray, twin: np.ndarray) -> float:
    """Of numbers, over what is finite in both; infinite if they are equal, or no numbers."""
    if reference.dtype.kind not in "fiub":
        return np.inf if np.array_equal(reference, twin) else -np.inf
    if reference.shape != twin.shape:
        return -np.inf
    one, other = reference.astype(np.float64), twin.astype(np.float64)
    seen = np.isfinite(one) & np.isfinite(other)
    signal, noise = np.sum(one[seen] ** 2), np.sum((one[seen] - other[seen]) ** 2)
    return np.inf if noise == 0 else -np.inf if signal == 0 else float(10 * np.log10(signal / noise))


def _repeats(case: NodeCase, expected: Sequence[Any]) -> bool:
    """False where the float model draws random numbers."""
    again = _outputs(case.model.SerializeToString(), case.feeds)
    return not isinstance(again, str) and all(
        np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        for one, other in zip(expected, again, strict=True)
        if isinstance(one, np.ndarray)
    )


@lru_cache(maxsize=1)
def _float_outputs(case: NodeCase) -> list[Any] | str:
    """Of the float model as it came; the runtime's words if it does not run."""
    return _outputs(case.model.SerializeToString(), case.feeds)


def _outputs(model: bytes, feeds: Mapping[str, Any]) -> list[Any] | str:
    try:
        session = ort.InferenceSession(model, session_options(1, optimized=True), providers=["CPUExecutionProvider"])
        outputs: list[Any] = session.run(None, dict(feeds))
    except (*RUNTIME_ERRORS, TypeError, ValueError) as error:  # the last two: of feeds that no tensor is made of
        return str(error)
    return outputs


def sample(cases: Mapping[str, NodeCase]) -> list[NodeCase]:
    """A case of every operator, the first that is fed float32 if there is one; then those that once failed."""
    chosen: dict[str, NodeCase] = {}
    for case in cases.values():
        if not case.expanded:
            first = chosen.setdefault(case.op_type, case)
            if not _takes_float32(first) and _takes_float32(case):
                chosen[case.op_type] = case
    found = {case.name: case for case in chosen.values()}
    for pattern, count in ONCE_FAILED.items():
        named = [case for case in cases.values() if re.fullmatch(pattern, case.name) and not case.expanded]
        found |= {case.name: case for case in named[:count]}
    return list(found.values())


def _takes_float32(case: NodeCase) -> bool:
    return any(_may_feed(value) for value in case.feeds.values())


# Pattern of names, and how many of the cases are in the sample.
ONCE_FAILED = {
    r"test_(lstm|gru|simple_rnn)_.*": 20, r"test_layer_normalization_.*": 4, r"test_attention_.*qk_matmul.*": 4,
    r"test_matmul_(1d_1d|1d_3d|4d_1d)": 3, r"test_averagepool_(2d_dilations|3d_dilations_small)": 2,
    r"test_scatternd_add": 1, r"test_scan9_multi_state": 1, r"test_scatter_elements_with_reduction_mul": 1,
}  # fmt: skip
