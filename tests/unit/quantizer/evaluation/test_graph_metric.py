"""Metrics of the caller's own, as ONNX graphs and as Python functions: what they are given, and what cannot serve."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import TensorInfo
from tests.unit.quantizer.evaluation.measuring import infos, measured, value
from tests.unit.quantizer.search.benches import chain_of_convolutions, samples
from tests.unit.quantizer.toolbox import config, make_model, normal, rng, run_onnx, sqnr_db, write_npz
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.pipeline import Provisions, Result, quantize
from worker.quantizer.run.interface import SilentRun

TOP1 = (
    "(float[N,C] y, int64[N] labels) => (float acc) { k = ArgMax<axis=1, keepdims=0>(y) e = Equal(k, labels) "
    "f = Cast<to=1>(e) m = ReduceMean<keepdims=0>(f) h = Constant<value_float=100.0>() acc = Mul(m, h) }"
)
SUMS = (
    "(float[N,C] y, int64[N] labels) => (float hits, int64[1] all) { k = ArgMax<axis=1, keepdims=0>(y) "
    "e = Equal(k, labels) f = Cast<to=1>(e) hits = ReduceSum<keepdims=0>(f) all = Shape(labels) }"
)
RMSE_SUMS = (
    "(float[N,C] y, float[N,C] truth) => (float s, float n) { d = Sub(y, truth) q = Mul(d, d) "
    "s = ReduceSum<keepdims=0>(q) z = Size(d) n = Cast<to=1>(z) }"
)


def text(model: onnx.ModelProto) -> str:
    return base64.b64encode(model.SerializeToString()).decode()


def graph(body: str, **options: Any) -> dict[str, Any]:
    return {"kind": "onnx", "name": "mine", "graph": {"base64": text(make_model(body))}, **options}


@given(
    samples=st.integers(1, 40), classes=st.integers(2, 9), seed=st.integers(0, 50), batch=st.sampled_from([1, 7, 64])
)
def test_top1_as_a_graph_is_the_built_in_one(samples: int, classes: int, seed: int, batch: int) -> None:
    outputs, labels = {"y": normal(samples, classes, seed=seed)}, rng(seed).integers(0, classes, samples)
    found = measured([{"kind": "top1"}, graph(TOP1, unit="%")], outputs, labels, batch=batch).values
    assert found["mine"] == pytest.approx(found["top1"], abs=2e-4)
    sums = value(graph(SUMS), outputs, labels, batch=batch)
    assert 100 * sums == pytest.approx(found["top1"], abs=2e-4)


def test_sums_give_what_means_of_batches_do_not_and_what_is_not_finite_nothing() -> None:
    outputs, arrays = {"y": normal(30, 4)}, {"truth": normal(30, 4, seed=1)}
    found = measured([{"kind": "rmse", "labels": "truth"}, graph(RMSE_SUMS, better="lower")], outputs, arrays=arrays)
    assert found.values["mine"] == pytest.approx(found.values["rmse"] ** 2, rel=1e-5)
    # what is not finite has no value
    zero = "(float[N,C] y) => (float s, float n) { s = ReduceSum<keepdims=0>(y) n = Sub(s, s) }"
    found = measured([graph(zero)], {"y": normal(9, 3)})
    assert "counted nothing" in found.undefined["mine"]
    bad = "(float[N,C] y) => (float s) { z = Sub(y, y) q = Div(y, z) s = ReduceMean<keepdims=0>(q) }"
    found = measured([graph(bad)], {"y": normal(9, 3)})
    assert "NaN or Inf" in found.undefined["mine"]
    assert found.values == {}


def test_inputs_may_be_mapped_to_outputs_arrays_and_those_of_the_float_model() -> None:
    outputs, labels = {"a": normal(30, 3), "b": normal(30, 5, seed=2)}, rng(1).integers(0, 5, 30)
    expected = value({"kind": "top1", "output": "b"}, outputs, labels)
    for output in ("b", 1):
        inputs = {"y": {"output": output}, "labels": {"array": "truth"}}
        got = value(graph(TOP1, inputs=inputs), outputs, arrays={"truth": labels})
        assert got == pytest.approx(expected, abs=2e-4)
    # the float models output may be an input
    body = (
        "(float[N,C] y, float[N,C] was) => (float s, float n) { d = Sub(y, was) a = Abs(d) "
        "s = ReduceSum<keepdims=0>(a) z = Size(d) n = Cast<to=1>(z) }"
    )
    x, y = normal(30, 4), normal(30, 4, seed=1)
    metric = graph(body, inputs={"was": {"reference": 0}}, better="lower")
    assert value(metric, {"y": y}, reference={"y": x}) == pytest.approx(np.abs(x - y).mean(), rel=1e-5)
    assert value(metric, {"y": x}) == 0.0


def test_integers_are_cast_where_nothing_is_lost() -> None:
    outputs, labels = {"y": normal(30, 5)}, rng(1).integers(0, 5, 30)
    expected = value({"kind": "top1"}, outputs, labels)
    for dtype in (np.uint8, np.int32, np.int64):
        assert value(graph(TOP1), outputs, labels.astype(dtype)) == pytest.approx(expected, abs=2e-4)
    narrow = TOP1.replace("int64[N] labels", "int8[N] labels").replace("Equal(k, labels)", "Equal(k, wide)")
    narrow = narrow.replace("{ ", "{ wide = Cast<to=7>(labels) ")
    assert value(graph(narrow), outputs, labels) == pytest.approx(expected, abs=2e-4)
    with pytest.raises(InvalidConfigError, match="not all values fit") as caught:
        value(graph(narrow), outputs, labels + 200)
    assert caught.value.errors[0].pointer == "/config/evaluation/metrics/0/inputs/labels"


def refused(metric: dict[str, Any], outputs: Any = None, labels: Any = None, **options: Any) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        measured([metric], outputs or {"y": normal(9, 3)}, np.zeros(9, int) if labels is None else labels, **options)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("body", "place", "says"),
    [
        (TOP1.replace("labels", "marks"), "inputs", "the graph's input 'marks' has no source"),
        ("(float[N,C] y) => (float a, float b, float c) { a, b, c = Split<axis=0>(y) }", "graph", "a sum and a count"),
        ("(float[N,C] y) => (float[2] s) { s = Shape(y) }", "graph", "shape [2], not a scalar's"),
        ("(float[N,C] y) => (bool s) { s = IsNaN(y) }", "graph", "is bool"),
        ("(float[N,C] y) => (float[K] s) { s = ReduceSum<keepdims=0>(y) z = Foo(y) }", "graph", "Foo"),
        ("(float[N,C] y) => (float s) { s = com.evil.Run(y) }", "graph", "com.evil"),
        ("(float[N,C] y) => (float[K] s) { s = ReduceMean<axes=[1], keepdims=0>(y) }", "graph", "no scalar"),
        ("(float[N,5] y) => (float s) { s = ReduceMean<keepdims=0>(y) }", "graph", "Got: 3 Expected: 5"),
        ("(int64[N,C] y) => (float s) { f = Cast<to=1>(y) s = ReduceMean<keepdims=0>(f) }", "inputs/y", "takes int64"),
        ("(float[N,C] y) => (float s) { }", "graph", "no nodes"),
    ],
)
def test_graphs_that_cannot_serve(body: str, place: str, says: str) -> None:
    error = refused(graph(body))
    assert error.errors[0].pointer == f"/config/evaluation/metrics/0/{place}"
    assert says in error.detail
    assert "mine" in error.detail


@pytest.mark.parametrize("data", [b"no model at all", b"\x08", make_model(TOP1).SerializeToString()[:-40]])
def test_bytes_that_are_no_graph(data: bytes) -> None:
    metric = {"kind": "onnx", "name": "mine", "graph": {"base64": base64.b64encode(data).decode()}}
    assert refused(metric).errors[0].pointer == "/config/evaluation/metrics/0/graph"


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        ({"z": {"output": 0}}, "z"),
        ({"y": {"output": "t"}}, "y/output"),
        ({"y": {"reference": 3}}, "y/reference"),
        ({"labels": {"array": "far"}}, "labels/array"),
    ],
)
def test_mappings_that_lead_nowhere(inputs: dict[str, Any], place: str) -> None:
    error = refused(graph(TOP1, inputs=inputs))
    assert error.errors[0].pointer == f"/config/evaluation/metrics/0/inputs/{place}"


def test_a_graph_must_not_read_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.arange(3, dtype=np.float32).tobytes())
    model = make_model("(float[N,3] y) => (float s) { t = Mul(y, w) s = ReduceMean<keepdims=0>(t) }")
    tensor = onnx.TensorProto(name="w", dims=[3], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=str(secret)))
    model.graph.initializer.append(tensor)
    metric = {"kind": "onnx", "name": "mine", "graph": {"base64": text(model)}}
    error = refused(metric)
    assert "in another file" in error.detail
    assert error.errors[0].pointer == "/config/evaluation/metrics/0/graph"


def test_an_uploaded_graph_counts_like_one_in_the_config(tmp_path: Path) -> None:
    file = tmp_path / "metric.onnx"
    onnx.save(make_model(TOP1), file)
    inspect_model(file, threads=1)  # the service accepts it as a model
    outputs, labels, x = {"y": normal(30, 5)}, rng(1).integers(0, 5, 30), {"x": np.zeros((30, 1), np.float32)}
    spec = EvaluationSpec.model_validate({"metrics": [{"kind": "onnx", "graph": {"model_id": "mdl_1"}}]})
    assert spec.graph_models == ("mdl_1",)
    bound, data = Metrics(spec, infos(outputs), graphs={"mdl_1": file}), ArrayDataset(x, labels)
    bound.check(data)
    found = bound.start()
    for batch in data.batches(infos(x), 8, arrays=bound.arrays):
        found.update(batch, {"y": outputs["y"][batch.numbers[0] : batch.numbers[0] + batch.valid]})
    assert found.values["onnx"] == pytest.approx(value({"kind": "top1"}, outputs, labels), abs=2e-4)
    with pytest.raises(InvalidConfigError, match="uploaded model 'mdl_1' does not exist") as caught:
        Metrics(spec, infos(outputs))
    assert caught.value.errors[0].pointer == "/config/evaluation/metrics/0/graph/model_id"


SAMPLES = 24
MIXING = {"method": "mixed_precision", "combination": "A16W16_A8W8"}


class Recorder:
    """Share of samples whose largest score is where the given one's is; remembers what it was called with."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels
        self.seen: list[np.ndarray] = []

    def __call__(self, outputs: np.ndarray) -> float:
        assert len(outputs) == len(self.labels)
        self.seen.append(outputs)
        return float((outputs.argmax(axis=1) == self.labels).mean())


def declared(**fields: Any) -> dict[str, Any]:
    return {"metrics": [{"kind": "function", "name": "mine", **fields}], "latency_runs": 1, "layer_samples": 1}


def quantized(folder: Path, functions: dict[str, Any], evaluation: dict[str, Any], **settings: Any) -> Result:
    onnx.save(chain_of_convolutions(outlier=2), folder / "float.onnx")
    data = write_npz(folder / "data.npz", x=samples(SAMPLES)["x"])
    settings = config(evaluation=evaluation, **settings)
    return quantize(
        folder / "float.onnx", settings, data, run=SilentRun(), threads=1, provisions=Provisions(functions=functions)
    )


def float_labels(folder: Path) -> np.ndarray:
    labels: np.ndarray = run_onnx(chain_of_convolutions(outlier=2), {"x": samples(SAMPLES)["x"]})["y"].argmax(axis=1)
    return labels


@pytest.mark.slow
def test_a_function_is_given_all_samples_once_per_model_and_judges_no_steps(tmp_path: Path) -> None:
    function = Recorder(float_labels(tmp_path))
    report = quantized(tmp_path, {"mine": function}, {**declared(), "gate": {"max_drop": 0.5}}).report
    (figures,) = report.metrics
    assert (figures.name, figures.kind, figures.float_) == ("mine", "function", 1.0)
    assert len(function.seen) == 2
    assert figures.quantized == pytest.approx(Recorder(function.labels)(function.seen[1]))
    assert report.gate[0].got == pytest.approx(1.0 - (figures.quantized or 0.0))
    # steps are judged by distance where it alone is declared
    report = quantized(
        tmp_path, {"mine": Recorder(float_labels(tmp_path))}, declared(), algorithms=[{"method": "bias_correction"}]
    ).report
    (figures,) = report.algorithms
    assert figures.before is not None and figures.before.sqnr_db is not None and figures.before.value is None


@pytest.mark.slow
def test_a_goal_of_mixed_precision_is_judged_by_it(tmp_path: Path) -> None:
    exact: list[np.ndarray] = []

    def only_near(outputs: np.ndarray) -> float:
        assert len(outputs) == SAMPLES
        exact.append(outputs)
        return 1.0 if len(exact) == 1 or sqnr_db(exact[0], outputs) > 40.0 else 0.0

    def lowered(function: Any) -> int:
        goal = {"kind": "drop", "metric": "mine", "max_drop": 0.1}
        report = quantized(tmp_path, {"mine": function}, declared(), algorithms=[{**MIXING, "goal": goal}]).report
        assert "mine drop" in report.algorithms[0].summary
        return report.algorithms[0].nodes

    assert lowered(lambda outputs: 1.0) == 5
    assert 0 < lowered(only_near) < 5
    assert sqnr_db(exact[0], exact[-1]) > 40.0  # what came out, measured for the report


def test_a_distance_gets_the_float_output_first() -> None:
    spec = EvaluationSpec.model_validate(declared(against_float=True, better="lower"))
    given: list[tuple[np.ndarray, ...]] = []

    def distance(reference: np.ndarray, twin: np.ndarray) -> np.float64:
        given.append((reference, twin))
        return np.abs(reference - twin).max()

    outputs, twins = normal(10, 3), normal(10, 3, seed=1)
    found = Metrics(spec, infos({"y": outputs}), functions={"mine": distance}).start()
    data = ArrayDataset({"x": outputs})
    for batch in data.batches([TensorInfo(name="x", dtype="float32", shape=("n", 3))], 4):
        part = slice(batch.numbers[0], batch.numbers[0] + batch.valid)
        found.update(batch, {"y": twins[part]}, {"y": outputs[part]})
    assert found.values["mine"] == pytest.approx(float(np.abs(outputs - twins).max()), rel=1e-6)
    np.testing.assert_array_equal(given[0][0], outputs)
    np.testing.assert_array_equal(given[0][1], twins)


def test_a_function_that_is_not_there_or_returns_no_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="returned str, not a number"):
        quantized(tmp_path, {"mine": lambda outputs: "many"}, declared())
    report = quantized(tmp_path, {"mine": lambda outputs: float("nan")}, declared()).report
    assert report.metrics[0].quantized is None
    # without the function the refusal names what needs none
    spec = EvaluationSpec.model_validate(declared())
    with pytest.raises(InvalidConfigError) as caught:
        Metrics(spec, infos({"y": normal(2, 3)}))
    assert caught.value.errors[0].pointer == "/config/evaluation/metrics/0/kind"
    assert "kind onnx" in (caught.value.hint or "")
