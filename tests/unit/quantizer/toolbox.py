"""Small models written as text, and the ways to run them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.model import TensorInfo
from service.contracts.runner import DatasetSource
from worker.quantizer.data import ArrayDataset
from worker.quantizer.emit import emit
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.modes.registry import MODES
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.targets import edit_graph, move_grids
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared, prepare
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.ranges import range_observer

Arrays = Mapping[str, np.ndarray]


def make_model(text: str, weights: Arrays | None = None, *, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """A model from ONNX text form; ``weights`` become initializers.

    ``text`` is the graph alone: ``(float[N,3] x) => (float[N,4] y) { [fc] y = Gemm(x, w, b) }``.
    """
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
    model = onnx.parser.parse_model(f"{header}\ng {text}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (rng(seed).standard_normal(shape) * scale).astype(np.float32)


def batchnorm_weights(channels: int, prefix: str = "bn") -> dict[str, np.ndarray]:
    return {
        f"{prefix}_scale": normal(channels, seed=11) + 1.5,
        f"{prefix}_bias": normal(channels, seed=12),
        f"{prefix}_mean": normal(channels, seed=13),
        # the last variance is so small that epsilon decides
        f"{prefix}_var": np.concatenate([rng(14).random(channels - 1) + 0.1, [1e-6]]).astype(np.float32),
    }


def batchnorm_text(source: str, result: str, prefix: str = "bn", attributes: str = "") -> str:
    inputs = ", ".join(f"{prefix}_{part}" for part in ("scale", "bias", "mean", "var"))
    return f"[{prefix}] {result} = BatchNormalization{attributes}({source}, {inputs})"


def network(batch: str = "N", opset: int = 17) -> onnx.ModelProto:
    """Convolution, BatchNormalization, Relu, a branch, a pool, a classifier with a Softmax."""
    weights = {
        "w": normal(8, 3, 3, 3, scale=0.3),
        "w2": normal(8, 8, 3, 3, scale=0.2),
        "k": normal(8, 5, scale=0.05),
        "v": normal(5),
        **batchnorm_weights(8),
    }
    return make_model(
        f"(float[{batch},3,10,10] x) => (float[{batch},5] scores) {{ [stem] a = Conv(x, w) {batchnorm_text('a', 'c')} "
        "[act] r = Relu(c) [body] d = Conv<pads=[1,1,1,1]>(r, w2) [join] s = Add(r, d) [pool] p = GlobalAveragePool(s) "
        "[flat] f = Flatten(p) [dense] m = MatMul(f, k) [bias] t = Add(m, v) [soft] scores = Softmax<axis=1>(t) }",
        weights,
        opset=opset,
    )


def data(samples: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": normal(samples, 3, 10, 10, seed=seed), "labels": rng(seed).integers(0, 5, samples)}


def run_onnx(model: onnx.ModelProto | bytes, feeds: Arrays, *, optimized: bool = True) -> dict[str, np.ndarray]:
    """All outputs by name, on one thread."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def prepare_proto(model: onnx.ModelProto, *, subgraph_weights: bool = False) -> tuple[Prepared, onnx.ModelProto]:
    """The prepared model, as the engine holds it and as a proto; ``model`` stays as it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    prepared = prepare(ir.from_proto(copy), subgraph_weights=subgraph_weights)
    return prepared, ir.to_proto(prepared.model)


def step(prepared: Prepared, name: str) -> Any:
    return next(found for found in prepared.steps if found.name == name)


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def config(**settings: Any) -> QuantizationConfig:
    """A config without algorithms unless they are given."""
    return parse_config({"preset": "plain", "algorithms": [], **settings})


def plan_for(
    model: onnx.ModelProto, settings: QuantizationConfig | None = None, plan_log: PlanLog | None = None
) -> tuple[Prepared, QuantizationPlan]:
    """The prepared model, edited for its target, and its plan."""
    settings, plan_log = settings or config(), PlanLog() if plan_log is None else plan_log
    prepared, _ = prepare_proto(model, subgraph_weights=settings.subgraphs == "weights")
    plan_log.decide(edit_graph(prepared, settings))
    return prepared, MODES[settings.mode].form.plan(prepared.graph, settings, prepared.facts, plan_log)


def input_infos(model: onnx.ModelProto) -> tuple[TensorInfo, ...]:
    """The inputs that a caller has to feed; the dtype of all tensors of the tests is numpy's own word."""
    weights = {tensor.name for tensor in model.graph.initializer}
    infos = []
    for value in model.graph.input:
        if value.name not in weights:
            shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            infos.append(TensorInfo(name=value.name, dtype=dtype.name, shape=shape))
    return tuple(infos)


def quantize_model(
    model: onnx.ModelProto, feeds: Arrays, settings: QuantizationConfig | None = None, plan_log: PlanLog | None = None
) -> tuple[Prepared, QuantizationPlan, onnx.ModelProto]:
    """Prepare, plan, calibrate on ``feeds`` and emit, without files and without evaluation."""
    settings, plan_log = settings or config(), PlanLog() if plan_log is None else plan_log
    prepared, plan = plan_for(model, settings, plan_log)
    samples = len(next(iter(feeds.values())))
    observers = {tensor: range_observer(spec, samples=samples) for tensor, spec in plan.sources().items()}
    requests = [Request(tensor, observer) for tensor, observer in observers.items()]
    infos = input_infos(model)
    if requests:
        collect(prepared.model, requests, ArrayDataset(feeds), infos, limit=None, threads=1, run=SilentRun())
    fill_activations(prepared.graph, plan, {tensor: observer.result() for tensor, observer in observers.items()})
    plan_log.note(*Parameters(prepared.graph, plan).fill())
    move_grids(prepared.graph, plan, settings, plan_log)
    emitted = emit(ir.from_proto(ir.to_proto(prepared.model)), plan).model
    prepared.restore_interface(emitted)
    return prepared, plan, onnx.load_from_string(to_bytes(emitted))


def write_npz(path: Path, **arrays: np.ndarray) -> DatasetSource:
    np.savez(path, **arrays)
    return DatasetSource(path=str(path))


def quantize_file(
    folder: Path,
    model: onnx.ModelProto,
    calibration: Arrays | None,
    settings: QuantizationConfig | None = None,
    *,
    evaluation: Arrays | None = None,
    preprocessing: PreprocessingSpec | None = None,
    run: Run | None = None,
) -> Result:
    """The whole pipeline on files in ``folder``."""
    onnx.save(model, folder / "float.onnx")
    spec = preprocessing or PreprocessingSpec()
    sources = []
    for name, arrays in (("calibration", calibration), ("evaluation", evaluation)):
        if arrays is None:
            sources.append(None)
            continue
        write_npz(folder / f"{name}.npz", **arrays)
        sources.append(DatasetSource(path=str(folder / f"{name}.npz"), preprocessing=spec))
    return quantize(
        folder / "float.onnx", settings or config(), sources[0], sources[1], run=run or SilentRun(), threads=1
    )


def sqnr_db(reference: np.ndarray, twin: np.ndarray) -> float:
    signal, noise = np.sum(reference.astype(np.float64) ** 2), np.sum((reference - twin).astype(np.float64) ** 2)
    return float("inf") if noise == 0 else float(10 * np.log10(signal / noise))
