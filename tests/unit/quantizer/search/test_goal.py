"""A goal and a metric of one name have one value."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from service.contracts.algorithms.precision import DistanceGoal
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import TensorInfo
from tests.unit.quantizer.search.benches import chain_of_convolutions, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal
from worker.quantizer.evaluation.certainty import surely_differ
from worker.quantizer.evaluation.compare import compare
from worker.quantizer.evaluation.metrics import IDENTICAL_DB, Metrics
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.search.goal import GoalEvaluator, GoalMeasurement

MAPS = make_model(
    "(float[N,3,8,8] x) => (float[N,5,8,8] y) { [conv] y = Conv(x, w) }", {"w": normal(5, 3, 1, 1, scale=0.5)}
)
UNTOUCHED = make_model("(float[N,3,8,8] x) => (float[N,3,8,8] y) { [relu] y = Relu(x) }")


def measured(draft: Draft, toolkit: Toolkit, metric: str, limit: float = 0.0) -> GoalMeasurement:
    return GoalEvaluator(DistanceGoal(metric=metric, limit=limit), toolkit.case, toolkit.services).measure(draft)  # type: ignore[arg-type]


def declared(draft: Draft, toolkit: Toolkit, metric: str) -> float:
    case, services = toolkit.case, toolkit.services
    spec = EvaluationSpec.model_validate({"metrics": [{"kind": metric}]})
    metrics = Metrics(spec, (TensorInfo(name="y", dtype="float32", shape=(None, None)),))
    found = compare(case.reference, draft.session(1), metrics=metrics, run=services.run)
    return found.quantized_metrics[metric]


@pytest.mark.parametrize("metric", ["sqnr", "psnr", "cosine", "l2", "kl"])
@pytest.mark.parametrize("model", [chain_of_convolutions(2), MAPS], ids=["classes", "maps"])
def test_a_goal_measures_what_the_metric_of_its_name_does(model: onnx.ModelProto, metric: str) -> None:
    draft, toolkit = toolkit_for(model, config(weight={"dtype": "int4"}))
    assert measured(draft, toolkit, metric).value == declared(draft, toolkit, metric)


@pytest.mark.parametrize(("metric", "limit", "gap"), [("sqnr", IDENTICAL_DB + 50, 50.0), ("l2", 0.0, 0.0)])
def test_identical_outputs_are_as_near_as_the_metric_says(metric: str, limit: float, gap: float) -> None:
    draft, toolkit = toolkit_for(UNTOUCHED, config(exclude=[{"node": "relu"}]))
    assert measured(draft, toolkit, metric, limit).gap == pytest.approx(gap)


def test_a_larger_gap_is_farther_from_the_goal() -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    for metric, near, far in (("sqnr", 5.0, 90.0), ("l2", 0.9, 1e-6)):
        assert measured(draft, toolkit, metric, near).met
        assert not measured(draft, toolkit, metric, far).met
        evidence = measured(draft, toolkit, metric, near).evidence
        assert evidence is not None and evidence.facts is not None and evidence.facts.samples == 48
        assert not surely_differ(evidence, evidence)


def test_what_is_not_finite_or_holds_no_classes_has_no_goal() -> None:
    draft, toolkit = toolkit_for(flat("y = MatMul(t, k)", normal(192, 1)))
    with pytest.raises(InvalidConfigError, match="kl: it contains no class scores"):
        measured(draft, toolkit, "kl")
    # a float model that is not finite has no goal
    draft, toolkit = toolkit_for(logarithm(np.zeros((192, 5), np.float32)))
    with pytest.raises(InvalidConfigError, match="the goal names metric 'sqnr'"):
        measured(draft, toolkit, "sqnr")


def flat(body: str, weight: np.ndarray) -> onnx.ModelProto:
    text = f"(float[N,3,8,8] x) => (float[N,{weight.shape[1]}] y) {{ [f] t = Flatten(x) [dense] {body} }}"
    return make_model(text, {"k": weight})


def logarithm(weight: np.ndarray) -> onnx.ModelProto:
    """-inf where a grid rounds one of its positive values to 0."""
    return flat("s = MatMul(t, k) [log] y = Log(s)", weight)


def test_what_quantization_has_wiped_out_or_made_infinite_misses_the_goal() -> None:
    x = np.full((48, 3, 8, 8), 0.01, np.float32)
    x[0] = 100.0
    draft, toolkit = toolkit_for(logarithm(np.full((192, 5), 1 / 192, np.float32)), x=x)
    for metric, limit in (("sqnr", 10.0), ("kl", 0.1)):
        found = measured(draft, toolkit, metric, limit)
        assert found.value is None and found.gap is None and not found.met
        assert found.undefined == "the outputs contain NaN or Inf, or are all zero"
    # outputs that quantization has wiped out are as far as can be
    draft, toolkit = toolkit_for(flat("y = MatMul(t, k)", normal(192, 5)))
    for weight in draft.plan.weights.values():
        weight.integers = np.zeros_like(weight.integers)
    assert measured(draft, toolkit, "cosine", 0.9).gap == pytest.approx(0.9)
    assert measured(draft, toolkit, "sqnr", 10.0).gap == pytest.approx(10.0)
