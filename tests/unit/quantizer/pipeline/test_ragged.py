"""Samples of different lengths through the whole pipeline, held to onnxruntime on one sample at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import DatasetMismatchError
from tests.support.provenance import without_provenance
from tests.unit.quantizer.toolbox import (
    input_infos,
    make_model,
    normal,
    prepare_proto,
    quantize_file,
    rng,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.data import ArrayDataset
from worker.quantizer.pipeline import Result
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.observers import MinMax

LENGTHS = (3, 3, 7, 1, 5, 5, 5, 2, 9, 3, 4, 6)
CLASSES = 4
Arrays = dict[str, np.ndarray[Any, Any]]


def sentences_model() -> onnx.ModelProto:
    weights = {
        "table": normal(20, 16, seed=1),
        "w1": normal(16, 24, seed=2, scale=0.3),
        "w2": normal(24, CLASSES, seed=3, scale=0.3),
    }
    return make_model(
        f"(int64[N,L] tokens) => (float[N,{CLASSES}] scores) {{ [embed] e = Gather(table, tokens) "
        "[up] a = MatMul(e, w1) [act] r = Relu(a) [down] d = MatMul(r, w2) "
        "[pool] scores = ReduceMean<axes=[1], keepdims=0>(d) }",
        weights,
    )


def sounds_model() -> onnx.ModelProto:
    weights = {
        "k1": normal(12, 6, 3, seed=1, scale=0.3),
        "b1": normal(12, seed=2, scale=0.1),
        "k2": normal(12, 12, 3, seed=3, scale=0.2),
        "w": normal(12, CLASSES, seed=4),
    }
    return make_model(
        f"(float[N,6,T] x) => (float[N,{CLASSES}] scores) {{ [one] a = Conv<pads=[1,1]>(x, k1, b1) [act] r = Relu(a) "
        "[two] c = Conv<pads=[1,1]>(r, k2) [pool] p = ReduceMean<axes=[2], keepdims=0>(c) "
        "[dense] scores = MatMul(p, w) }",
        weights,
    )


def sentences(seed: int = 0) -> list[np.ndarray[Any, Any]]:
    return [rng(seed + k).integers(0, 20, n) for k, n in enumerate(LENGTHS)]


def sounds(seed: int = 0) -> list[np.ndarray[Any, Any]]:
    return [normal(6, n, seed=seed + k) for k, n in enumerate(LENGTHS)]


CASES = {"tokens": (sentences_model, sentences), "x": (sounds_model, sounds)}


def ragged(name: str, samples: list[np.ndarray[Any, Any]]) -> Arrays:
    return {f"{name}/{k:04d}": sample for k, sample in enumerate(samples)}


def one_by_one(model: onnx.ModelProto | bytes, name: str, samples: list[np.ndarray[Any, Any]]) -> list[Arrays]:
    return [run_onnx(model, {name: sample[None]}) for sample in samples]


@pytest.mark.parametrize("name", list(CASES))
def test_ranges_are_those_of_one_sample_at_a_time(name: str) -> None:
    model, samples = CASES[name][0](), CASES[name][1]()
    prepared, proto = prepare_proto(model)
    inner = [value for node in proto.graph.node for value in node.output if value != "scores"]
    observers = {tensor: MinMax() for tensor in inner}
    requests = [Request(tensor, observer) for tensor, observer in observers.items()]
    collect(
        prepared.model, requests, ArrayDataset(ragged(name, samples)), input_infos(model), limit=None, threads=1,
        run=SilentRun(),
    )  # fmt: skip
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(tensor) for tensor in inner)
    alone = one_by_one(watched, name, samples)
    for tensor, observer in observers.items():
        found = observer.result()
        expected = [found_alone[tensor] for found_alone in alone]
        assert found.minimum == pytest.approx(min(values.min() for values in expected), rel=1e-5, abs=1e-6)
        assert found.maximum == pytest.approx(max(values.max() for values in expected), rel=1e-5, abs=1e-6)


def quantized(
    folder: Path, name: str, settings: dict[str, Any], *, labels: np.ndarray[Any, Any] | None = None, seed: int = 100
) -> Result:
    model, make = CASES[name][0](), CASES[name][1]
    evaluation = ragged(name, make(seed))
    if labels is not None:
        evaluation["labels"] = labels
    return quantize_file(folder, model, ragged(name, make()), parse_config(settings), evaluation=evaluation)


SETTINGS: dict[str, dict[str, Any]] = {
    "int8": {"preset": "int8"},
    "int8_weights with AdaRound": {"preset": "int8_weights", "algorithms": [{"method": "adaround"}]},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", list(CASES))
def test_samples_of_different_lengths_are_quantized_and_measured(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    model, samples = CASES[name][0](), CASES[name][1](100)
    exact = [outputs["scores"] for outputs in one_by_one(model, name, samples)]
    best = np.array([scores.argmax() for scores in exact])
    labels = (best + (np.arange(len(best)) % 3 == 0)) % CLASSES  # every third one is wrong, whatever its length
    result = quantized(tmp_path, name, settings, labels=labels)
    got = [outputs["scores"] for outputs in one_by_one(result.model, name, samples)]
    assert sqnr_db(np.concatenate(exact), np.concatenate(got)) > 15
    (top1,) = [figures for figures in result.report.metrics if figures.name == "top1"]
    assert top1.float_ == pytest.approx(100.0 * (best == labels).mean(), abs=1e-3)
    assert top1.float_ == pytest.approx(100.0 * 8 / 12, abs=1e-3)
    assert top1.quantized == pytest.approx(100.0 * (np.ravel([s.argmax() for s in got]) == labels).mean(), abs=1e-3)
    assert not any(finding.code == "data-nearly-constant" for finding in result.report.findings)
    if "algorithms" in settings:
        (adaround,) = result.report.algorithms
        assert "layers changed" in adaround.summary
        assert not adaround.summary.startswith("0 of")


@pytest.mark.slow
def test_a_set_of_samples_of_one_shape_gives_the_bytes_of_a_plain_array(tmp_path: Path) -> None:
    x, settings = normal(8, 6, 5, seed=5), parse_config({"preset": "int8"})
    plain, other = (
        quantize_file(tmp_path, sounds_model(), a, settings).model for a in ({"x": x}, ragged("x", list(x)))
    )
    assert without_provenance(plain) == without_provenance(other)


def test_samples_whose_lengths_a_fixed_axis_or_a_training_does_not_take_are_refused(tmp_path: Path) -> None:
    model = sounds_model()
    settings = {"preset": "int8", "algorithms": [{"method": "qat", "epochs": 1}]}
    with pytest.raises(DatasetMismatchError, match="input 'x' differ in shape"):
        quantize_file(tmp_path, model, ragged("x", sounds()), parse_config(settings))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 5
    with pytest.raises(DatasetMismatchError, match=r"axis 2 varies from 1 to 9, the model needs 5") as caught:
        quantize_file(tmp_path, model, ragged("x", sounds()), parse_config({"preset": "int8"}))
    assert "dynamic" in str(caught.value.hint)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level"), [("tokens", 2), ("x", 0)], ids=["on disk", "in memory"])
def test_gradients_take_layers_whose_rows_can_be_rearranged(tmp_path: Path, name: str, level: int) -> None:
    algorithm = {"method": "adaround", "solver": "gradient", "num_iterations": 50, "mem_opt_level": level}
    report = quantized(tmp_path, name, {"preset": "int8_weights", "algorithms": [algorithm]}).report
    (adaround,) = report.algorithms
    refused = "one, two left out: gradients run samples together, and those of its tensors differ in shape"
    if name == "tokens":
        assert adaround.summary.startswith("2 of 2 layers changed")
    else:
        assert adaround.summary.startswith("1 of 3 layers changed")
        assert refused in adaround.summary
    assert all(error.after < error.before for error in adaround.reconstruction.values())


@pytest.mark.slow
def test_gradients_find_the_same_however_the_rows_are_cut(tmp_path: Path) -> None:
    rows, lengths = normal(4 * 12, 16, seed=7), np.array([3, 5, 1, 7, 4, 4, 2, 6, 4, 4, 3, 5])
    model = make_model(
        "(float[N,L,16] x) => (float[N,L,8] y) { [up] a = MatMul(x, w1) [act] r = Relu(a) [down] y = MatMul(r, w2) }",
        {"w1": normal(16, 24, seed=2, scale=0.3), "w2": normal(24, 8, seed=3, scale=0.3)},
    )
    cut = [np.ascontiguousarray(piece) for piece in np.split(rows, np.cumsum(lengths)[:-1])]
    algorithm = {"method": "adaround", "solver": "gradient", "num_iterations": 50}
    settings = parse_config({"preset": "int8_weights", "algorithms": [algorithm]})
    forms = ({"x": rows.reshape(12, 4, 16)}, ragged("x", cut))
    plain, other = (quantize_file(tmp_path, model, arrays, settings).report.algorithms[0] for arrays in forms)
    assert plain.summary.split(";")[0] == other.summary.split(";")[0] == "2 of 2 layers changed"
    for layer, error in plain.reconstruction.items():
        assert other.reconstruction[layer].before == pytest.approx(error.before, rel=1e-4)
        assert other.reconstruction[layer].after == pytest.approx(error.after, rel=1e-2)
