"""Weights alone: our presets without quantized activations, or with dynamic ones, beside onnxruntime's own tools.

usage: python -m benchmarks.weights [text | trained | encoder | kernels ...]
                                                   (needs QUANTMILL_DATA, default ../shared/data)

text: bytes and perplexity of a small language model, and how long quantizing took, as a multiple of the quickest of the
run. trained: the same model with 4 and 2 bits, rounded, and trained on text of its own. encoder: bytes and agreement of
an encoder of BERT's shape with random weights, with and without a tied head; the same operators are quantized by both.
kernels: latency of products with 4-bit weights in blocks of 32, taken in turn, as a multiple of the float one's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization import matmul_nbits_quantizer as nbits

from benchmarks.cases import THREADS, arrays, data_folder, source
from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.runner import DatasetSource
from tests.support.encoder import Head, encoder, texts
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

BLOCK = 32
_TEXT, _LEARNED, _HELD_BACK = "text/stories260K.onnx", "text/stories_c.npz", "text/stories_e.npz"
_QUICK = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
_NOT_QUANTIZING = ("evaluation", "layers", "latency", "advice")
# Float; onnxruntime's own operator, which may compute with activations of 8 bits; and the standard form, of which the
# runtime makes that operator when it loads the model, at level 4.
_FLOAT, _NBITS, _NBITS_INTEGER, _STANDARD = "MatMul", "MatMulNBits", "MatMulNBits, level 4", "DequantizeLinear, MatMul"
_KERNELS = (_FLOAT, _NBITS, _NBITS_INTEGER, _STANDARD)
_SHAPES = ((1024, 4096), (4096, 1024))
_ROWS, _TIMES = (1, 64), 100

# What a tool makes: the model's bytes, and the seconds that it took.
Made = tuple[bytes, float]


def ours(model: Path, preset: str, calibration: DatasetSource, algorithms: tuple[str, ...] | None = None) -> Made:
    """By a preset of ours, or with other algorithms; the seconds are those of everything but the comparison."""
    chosen = {} if algorithms is None else {"algorithms": [{"method": method} for method in algorithms]}
    return made_by({"preset": preset, **chosen}, model, calibration)


def made_by(settings: dict[str, Any], model: Path, calibration: DatasetSource) -> Made:
    """By a config of ours; the seconds are those of everything but the comparison."""
    config = parse_config({"evaluation": _QUICK, **settings})
    result = quantize(model, config, calibration, None, run=SilentRun(), threads=THREADS)
    spent = sum(stage.seconds for stage in result.report.stages if stage.name not in _NOT_QUANTIZING)
    return bytes(result.model), spent


def theirs_dynamic(model: Path) -> Made:
    """By onnxruntime's dynamic quantization of the same operators."""
    with tempfile.TemporaryDirectory() as folder:
        begin, written = time.perf_counter(), Path(folder) / "q.onnx"
        quantize_dynamic(
            model, written, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gather"]
        )
        return written.read_bytes(), time.perf_counter() - begin


def theirs_nbits(model: Path, algorithm: nbits.WeightOnlyQuantConfig) -> Made:
    """By onnxruntime's 4 bits in blocks."""
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        quantizer = nbits.MatMulNBitsQuantizer(
            onnx.load(model),
            bits=4,
            block_size=BLOCK,
            is_symmetric=algorithm_is_symmetric(algorithm),
            algo_config=algorithm,
        )
        quantizer.process()
    return quantizer.model.model.SerializeToString(), time.perf_counter() - begin


def algorithm_is_symmetric(algorithm: nbits.WeightOnlyQuantConfig) -> bool:
    return bool(getattr(algorithm, "is_symmetric", False))


def session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def perplexity(model: bytes, ids: np.ndarray, *, batch: int = 16) -> float:
    """Of a language model: what it says at a position is held against the token at the next.

    Args:
        model: ids int64 [n, s] -> logits [n, s, tokens].
        ids: int64 [samples, s].
        batch: samples at once.
    """
    running, loss, count = session(model), 0.0, 0
    for first in range(0, len(ids), batch):
        part = ids[first : first + batch]
        logits = running.run(None, {running.get_inputs()[0].name: part})[0][:, :-1].astype(np.float64)
        largest = logits.max(-1, keepdims=True)
        whole = np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0]
        loss += float((whole - np.take_along_axis(logits, part[:, 1:, None], -1)[..., 0]).sum())
        count += part[:, 1:].size
    return float(np.exp(loss / count))


def text(folder: Path) -> None:
    model, ids = folder / _TEXT, np.load(folder / _HELD_BACK)["ids"]
    calibration = source(folder, (_LEARNED, arrays("ids", InputSpec(array="ids"))))
    presets = ("int8_weights", "int8_dynamic", "int4_weights", "int4_weights_accurate")
    algorithms: Mapping[str, nbits.WeightOnlyQuantConfig] = {
        "symmetric": nbits.DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, bits=4),
        "asymmetric": nbits.DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=False, bits=4),
        "k-quant": nbits.KQuantWeightOnlyQuantConfig(),
        "HQQ": nbits.HQQWeightOnlyQuantConfig(block_size=BLOCK, bits=4),
    }
    made = {f"`{preset}`": ours(model, preset, calibration) for preset in presets}
    made["`int8_dynamic`, nothing smoothed"] = ours(model, "int8_dynamic", calibration, ())
    made["`int4_weights`, awq"] = ours(model, "int4_weights", calibration, ("awq",))
    for name, algorithm in algorithms.items():
        made[f"onnxruntime, 4 bits {name}"] = theirs_nbits(model, algorithm)
    made["onnxruntime, dynamic int8"] = theirs_dynamic(model)
    quickest = min(spent for _, spent in made.values())
    print(f"\nquickest: {quickest:.2f} s\n\n| language model | bytes | perplexity | time |\n|---|---|---|---|")
    print(f"| float | {model.stat().st_size:,} | {perplexity(model.read_bytes(), ids):.3f} | |", flush=True)
    for name, (content, spent) in made.items():
        print(f"| {name} | {len(content):,} | {perplexity(content, ids):.3f} | {spent / quickest:.1f}x |", flush=True)


def trained(folder: Path) -> None:
    model, ids = folder / _TEXT, np.load(folder / _HELD_BACK)["ids"]
    calibration = source(folder, (_LEARNED, arrays("ids", InputSpec(array="ids"))))
    rounded: dict[str, Any] = {"preset": "int4_weights_accurate"}
    learned = {"method": "qat", "batch_size": 8, "generated_samples": 960, "zero_points": "learned"}
    faster = {"learning_rate": 0.01, "betas": [0.9, 0.99]}
    few = {**learned, "steps": 520, "freeze_oscillations": False, "optimizer": faster}
    recipes: dict[str, dict[str, Any]] = {
        "4 bits, rounded": rounded,
        "4 bits, trained": {**rounded, "algorithms": [{"method": "adaround"}, {**learned, "steps": 300}]},
        "2 bits, rounded": {**rounded, "weight": {"dtype": "uint2"}},
        "2 bits, trained": {**rounded, "weight": {"dtype": "uint2"}, "algorithms": [few]},
    }
    print("\n| language model | bytes | perplexity | s |\n|---|---|---|---|", flush=True)
    for name, settings in recipes.items():
        content, spent = made_by(settings, model, calibration)
        print(f"| {name} | {len(content):,} | {perplexity(content, ids):.3f} | {spent:.0f} |", flush=True)


@dataclass(frozen=True)
class Agreement:
    """How much of the float model's outputs is left: mean cosine of positions, and share of equal arg max (%)."""

    cosine: float
    same: float


def agreement(reference: np.ndarray, found: np.ndarray) -> Agreement:
    """Of outputs [n, s, channels]."""
    one, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (reference, found))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return Agreement(
        float(((one * other).sum(1) / lengths).mean()), 100 * float((one.argmax(1) == other.argmax(1)).mean())
    )


def encoders(folder: Path) -> None:
    del folder  # its weights are random
    names = {"none": "no head", "copied": "tied, MatMul", "shared": "tied, Gemm"}
    feeds = texts(16, 64, seed=1)
    print("\n| encoder | made by | bytes | over onnxruntime's | cosine | same arg max |\n" + "|---" * 6 + "|")
    for head in get_args(Head):
        with tempfile.TemporaryDirectory() as place:
            model, data = Path(place) / "float.onnx", Path(place) / "data.npz"
            model.write_bytes(encoder(head=head).SerializeToString())
            np.savez(data, **texts(8, 64))  # type: ignore[arg-type]
            calibration = DatasetSource(path=str(data), preprocessing=PreprocessingSpec())
            made = {"onnxruntime, dynamic int8": theirs_dynamic(model)[0]}
            for preset in ("int8_dynamic", "int8_weights"):
                made[f"`{preset}`"] = ours(model, preset, calibration)[0]
            reference = session(model.read_bytes()).run(None, feeds)[0]
            print(f"| {names[head]} | float | {model.stat().st_size:,} | | | |")
        size = len(made["onnxruntime, dynamic int8"])
        for name, content in made.items():
            told = agreement_told(reference, content, feeds, ranked=head != "none")
            print(f"| {names[head]} | {name} | {len(content):,} | {len(content) / size:.3f} | {told} |", flush=True)


def agreement_told(reference: np.ndarray, model: bytes, feeds: dict[str, Any], *, ranked: bool) -> str:
    """The columns of agreement, or that the runtime refuses the file."""
    try:
        running = session(model)
    except Fail as error:
        return f"does not load: {str(error).rpartition('] ')[2]} |"
    left = agreement(reference, running.run(None, feeds)[0])
    return f"{left.cosine:.5f} | " + (f"{left.same:.1f} %" if ranked else "")


def product(kind: str, inputs: int, outputs: int) -> bytes:
    """A model x [m, inputs] -> y [m, outputs] of one product, asymmetric 4 bits in blocks but for the float one."""
    random = np.random.default_rng(0)
    blocks = inputs // BLOCK
    integers = random.integers(0, 16, (inputs, outputs), np.uint8)
    scale = random.random((blocks, outputs), np.float32) + 0.1
    zero = random.integers(4, 12, (blocks, outputs), np.uint8)
    domain = ""
    if kind == _FLOAT:
        spread = [np.repeat(array.astype(np.float32), BLOCK, axis=0) for array in (zero, scale)]
        tensors = [numpy_helper.from_array((integers - spread[0]) * spread[1], "w")]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    elif kind in (_NBITS, _NBITS_INTEGER):
        by_block = integers.T.reshape(outputs, blocks, BLOCK)
        parts = (_nibbles(by_block), scale.T.reshape(-1).copy(), _nibbles(zero.T).reshape(-1))
        tensors = [numpy_helper.from_array(array, name) for name, array in zip("wsz", parts, strict=True)]
        domain = "com.microsoft"
        names = ["x", "w", "s", "z"]
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": BLOCK}
        sizes["accuracy_level"] = 4 if kind == _NBITS_INTEGER else 0
        nodes = [helper.make_node("MatMulNBits", names, ["y"], domain=domain, **sizes)]  # type: ignore[arg-type]
    else:
        tensors = [
            helper.make_tensor("w", TensorProto.UINT4, integers.shape, integers.ravel()),
            numpy_helper.from_array(scale, "s"),
            helper.make_tensor("z", TensorProto.UINT4, zero.shape, zero.ravel()),
        ]
        restored = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["r"], axis=0, block_size=BLOCK)
        nodes = [restored, helper.make_node("MatMul", ["x", "r"], ["y"])]
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", width])
        for name, width in (("x", inputs), ("y", outputs))
    ]
    graph = helper.make_graph(nodes, "product", sides[:1], sides[1:], tensors)
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def _nibbles(integers: np.ndarray) -> np.ndarray:
    """Two of the last axis to a byte, the first in the low bits."""
    packed: np.ndarray = integers[..., 0::2] | (integers[..., 1::2] << 4)
    return packed


def kernels(folder: Path) -> None:
    del folder
    print("\n| rows x inputs x outputs | " + " | ".join(_KERNELS) + " | standard over level 4 |\n" + "|---" * 5 + "|")
    for inputs, outputs in _SHAPES:
        running = {kind: session(product(kind, inputs, outputs)) for kind in _KERNELS}
        for rows in _ROWS:
            feeds = {"x": np.random.default_rng(1).standard_normal((rows, inputs), np.float32)}
            found = medians(running, feeds)
            words = [f"{found[kind] / found[_FLOAT]:.2f}" for kind in _KERNELS]
            over = found[_STANDARD] / found[_NBITS_INTEGER]
            print(f"| {rows} x {inputs} x {outputs} | {' | '.join(words)} | {over:.2f} |", flush=True)


def medians(running: Mapping[str, ort.InferenceSession], feeds: dict[str, Any]) -> dict[str, float]:
    """Seconds of a run of each, taken in turn, so that what else the machine does concerns all alike."""
    taken: dict[str, list[float]] = {kind: [] for kind in running}
    for _ in range(_TIMES):
        for kind, one in running.items():
            begin = time.perf_counter()
            one.run(None, feeds)
            taken[kind].append(time.perf_counter() - begin)
    return {kind: float(np.median(spent)) for kind, spent in taken.items()}


TABLES: dict[str, Callable[[Path], None]] = {"text": text, "trained": trained, "encoder": encoders, "kernels": kernels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=[], choices=[*TABLES, []])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # onnxruntime's tools tell of every node
    folder = data_folder()
    for table in arguments.tables or TABLES:
        TABLES[table](folder)


if __name__ == "__main__":
    main()
