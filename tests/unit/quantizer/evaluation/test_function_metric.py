"""Metrics that are Python functions of the caller: what they are given, when, and how a goal and a gate use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import TensorInfo
from tests.unit.quantizer.evaluation.measuring import infos
from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples
from tests.unit.quantizer.toolbox import config, normal, run_onnx, sqnr_db, write_npz
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun

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
    return quantize(folder / "float.onnx", settings, data, run=SilentRun(), threads=1, functions=functions)


def float_labels(folder: Path) -> np.ndarray:
    labels: np.ndarray = run_onnx(chain_of_convolutions(outlier=2), {"x": samples(SAMPLES)["x"]})["y"].argmax(axis=1)
    return labels


def test_it_is_given_all_samples_once_per_model_and_stands_in_report_and_gate(tmp_path: Path) -> None:
    function = Recorder(float_labels(tmp_path))
    report = quantized(tmp_path, {"mine": function}, {**declared(), "gate": {"max_drop": 0.5}}).report
    (figures,) = report.metrics
    assert (figures.name, figures.kind, figures.float_) == ("mine", "function", 1.0)
    assert len(function.seen) == 2
    assert figures.quantized == pytest.approx(Recorder(function.labels)(function.seen[1]))
    assert report.gate[0].got == pytest.approx(1.0 - (figures.quantized or 0.0))


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


def test_steps_are_judged_by_distance_where_it_alone_is_declared(tmp_path: Path) -> None:
    """A function is defined over all samples, and steps are judged on a part of them."""
    report = quantized(
        tmp_path, {"mine": Recorder(float_labels(tmp_path))}, declared(), algorithms=[{"method": "bias_correction"}]
    ).report
    (figures,) = report.algorithms
    assert figures.before is not None and figures.before.sqnr_db is not None and figures.before.value is None


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
        part = slice(batch.start, batch.start + batch.valid)
        found.update(batch, {"y": twins[part]}, {"y": outputs[part]})
    assert found.values["mine"] == pytest.approx(float(np.abs(outputs - twins).max()), rel=1e-6)
    np.testing.assert_array_equal(given[0][0], outputs)
    np.testing.assert_array_equal(given[0][1], twins)


def test_without_the_function_the_refusal_names_what_needs_none() -> None:
    spec = EvaluationSpec.model_validate(declared())
    with pytest.raises(InvalidConfigError) as caught:
        Metrics(spec, infos({"y": normal(2, 3)}))
    assert caught.value.errors[0].pointer == "/config/evaluation/metrics/0/kind"
    assert "kind onnx" in (caught.value.hint or "")


def test_what_is_no_number_is_refused_and_no_finite_one_leaves_the_metric_undefined(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="returned str, no number"):
        quantized(tmp_path, {"mine": lambda outputs: "many"}, declared())
    report = quantized(tmp_path, {"mine": lambda outputs: float("nan")}, declared()).report
    assert report.metrics[0].quantized is None
