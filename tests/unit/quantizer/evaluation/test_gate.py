"""The gate: every clause, for metrics of either direction."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from service.contracts.algorithms import Autopilot
from service.contracts.algorithms.precision import DropGoal
from service.contracts.dataset import ArraySummary, DatasetSummary, LabelSummary
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec, Gate
from service.contracts.evaluation_checks import check_evaluation
from service.contracts.model import TensorInfo
from service.contracts.report import (
    AlgorithmFigures,
    Fidelity,
    Finding,
    GateClause,
    Interval,
    LatencyFigures,
    MachineLoad,
    MetricFigures,
    ModelFigures,
)
from service.contracts.search import Search, TrialFigures
from tests.support.each import each
from worker.quantizer.evaluation.contributions import Contributions
from worker.quantizer.evaluation.gate import MeasuredPair, judge, metric_figures, search_clauses


class FakeSet:
    """A measurement of whose samples nothing is known."""

    contributions: ClassVar[dict[str, Contributions]] = {}


class FakeComparison:
    """What the gate reads of a comparison."""

    float_set = quantized_set = FakeSet()
    confidence, decisions = 0.95, MappingProxyType({})
    fidelity = Fidelity(sqnr_db=None, cosine=None, top1_agreement=None, samples=8, source="evaluation", outputs=())

    def __init__(self, before: dict[str, float], after: dict[str, float]) -> None:
        self.float_metrics, self.quantized_metrics = before, after


BEFORE = {"top1": 90.0, "top5": 99.0, "rmse": 2.0, "ppl": 12.0, "corr": 0.9}
AFTER = {"top1": 89.4, "top5": 98.0, "rmse": 2.25, "ppl": 11.5, "corr": 0.875, "cos": 0.97, "sq": 30.0, "l2": 0.125}
METRICS = [
    {"kind": "top1"}, {"kind": "rmse"}, {"kind": "perplexity", "name": "ppl"}, {"kind": "pearson", "name": "corr"},
    {"kind": "cosine", "name": "cos"}, {"kind": "sqnr", "name": "sq"}, {"kind": "l2"},
]  # fmt: skip


def verdict(spec: EvaluationSpec, **changes: float | None) -> tuple[str, dict[str, tuple[float | None, bool]]]:
    """Judge a model of 90 % that became one of 89.4 %."""
    got: dict[str, Any] = {**AFTER, "sqnr": 30.0, "agreement": 97.5, "size": 250, "latency": 3.0} | changes
    after = {name: got[name] for name in AFTER if got[name] is not None}
    float_ = ModelFigures(metrics=BEFORE, size_bytes=1000, latency_ms=4.0)
    quantized = ModelFigures(metrics=after, size_bytes=int(got["size"]), latency_ms=got["latency"])
    fidelity = Fidelity(
        sqnr_db=got["sqnr"], cosine=0.99, top1_agreement=got["agreement"], samples=8, source="evaluation", outputs=()
    )
    figures = metric_figures(spec, FakeComparison(BEFORE, after))  # type: ignore[arg-type]
    word, clauses = judge(spec.gate, MeasuredPair(float_, quantized, fidelity, figures))
    return word, {clause.clause: (clause.got, clause.holds) for clause in clauses}


def default(**gate: Any) -> EvaluationSpec:
    return EvaluationSpec(gate=Gate(**gate))


def declared(**gate: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate({"metrics": METRICS, "gate": gate})


CLAUSES = [
    (default(max_drop=0.6), "max_drop", 0.6, True),
    (default(max_drop=0.59), "max_drop", 0.6, False),
    (default(metric="top1_agreement", max_drop=2.5), "max_drop", 2.5, True),
    (default(metric="top1_agreement", max_drop=2.4), "max_drop", 2.5, False),
    (default(min_value=89.4), "min_value", 89.4, True),
    (default(min_value=89.5), "min_value", 89.4, False),
    (default(min_sqnr_db=30.0), "min_sqnr_db", 30.0, True),
    (default(min_sqnr_db=30.1), "min_sqnr_db", 30.0, False),
    (default(max_size_bytes=250), "max_size_bytes", 250, True),
    (default(max_size_bytes=249), "max_size_bytes", 250, False),
    (default(max_latency_ratio=0.75), "max_latency_ratio", 0.75, True),
    (default(max_latency_ratio=0.74), "max_latency_ratio", 0.75, False),
    # a drop is a change for the worse, whichever direction that is
    (declared(metric="rmse", max_drop=0.25), "max_drop", 0.25, True),
    (declared(metric="rmse", max_drop=0.24), "max_drop", 0.25, False),
    (declared(metric="rmse", max_value=2.25), "max_value", 2.25, True),
    (declared(metric="rmse", max_value=2.24), "max_value", 2.25, False),
    (declared(metric="ppl", max_drop=0.0), "max_drop", -0.5, True),
    (declared(metric="corr", max_drop=0.025), "max_drop", 0.025, True),
    (declared(metric="corr", min_value=0.88), "min_value", 0.875, False),
    # what compares with the float model drops from the value of identical outputs
    (declared(metric="cos", max_drop=0.02), "max_drop", 0.03, False),
    (declared(metric="l2", max_drop=0.1), "max_drop", 0.125, False),
    (declared(metric="sq", min_value=30.0), "min_value", 30.0, True),
    # the first declared metric is the gate's own choice
    (declared(max_drop=0.5), "max_drop", 0.6, False),
]


@each(("spec", "clause", "got", "holds"), CLAUSES)
def test_every_clause_passes_and_fails(spec: EvaluationSpec, clause: str, got: float, holds: bool) -> None:
    assert verdict(spec) == ("pass" if holds else "fail", {clause: (got, holds)})


def test_all_clauses_must_hold() -> None:
    assert verdict(default(max_drop=1, min_sqnr_db=20))[0] == "pass"
    held = {"max_drop": (0.6, True), "min_sqnr_db": (30.0, False)}
    assert verdict(default(max_drop=1, min_sqnr_db=40)) == ("fail", held)
    # a gain is no drop
    assert verdict(default(max_drop=0), top1=91.0) == ("pass", {"max_drop": (-1.0, True)})
    assert verdict(declared(metric="rmse", max_drop=0), rmse=1.5) == ("pass", {"max_drop": (-0.5, True)})
    assert verdict(default()) == verdict(declared(metric="rmse")) == ("none", {})


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (default(max_drop=100), {"top1": None}),
        (default(metric="top1_agreement", min_value=0), {"agreement": None}),
        (default(min_sqnr_db=-300), {"sqnr": None}),
        (default(max_latency_ratio=100), {"latency": None}),
        (declared(metric="cos", max_drop=100), {"cos": None}),
    ],
)
def test_what_was_not_measured_does_not_pass(spec: EvaluationSpec, changes: dict[str, None]) -> None:
    word, clauses = verdict(spec, **changes)
    assert (word, list(clauses.values())) == ("fail", [(None, False)])


def data(labels: LabelSummary | None) -> DatasetSummary:
    arrays = {"x": ArraySummary(dtype="float32", shape=(8, 3))}
    return DatasetSummary(format="npz", samples=8, arrays=arrays, labels=labels, size_bytes=1, sha256="0")


CLASSES = LabelSummary(array="labels", count=8, minimum=0, maximum=4)
TARGETS = LabelSummary(array="labels", count=8, dtype="float32", shape=(8,))


def refused(spec: EvaluationSpec, **given: Any) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        check_evaluation(spec, **given)
    assert caught.value.errors[0].pointer == "/config/evaluation/gate/metric"
    return caught.value


@pytest.mark.parametrize(("metric", "limits"), [("top1", {"max_drop": 1.0}), ("top5", {"min_value": 50.0})])
def test_a_gate_on_accuracy_needs_class_labels(metric: str, limits: dict[str, float]) -> None:
    spec = default(metric=metric, **limits)
    for labels in (None, TARGETS):
        assert refused(spec, outputs=None, data=data(labels)).hint
    check_evaluation(spec, outputs=None, data=data(CLASSES))
    check_evaluation(spec, outputs=None, data=None)
    agreement = default(metric="top1_agreement", max_drop=1)
    for other in (default(), default(min_sqnr_db=20), agreement, default(metric="top5")):
        check_evaluation(other, outputs=None, data=data(None))


def scores(classes: int) -> tuple[TensorInfo, ...]:
    return (TensorInfo(name="y", dtype="float32", shape=("n", classes)),)


def test_a_gate_on_the_first_five_needs_more_classes() -> None:
    of_config = {"metrics": [{"kind": "accuracy_at_k", "k": 5}], "gate": {"metric": "accuracy_at_5", "min_value": 90}}
    for spec in (default(metric="top5", max_drop=1.0), EvaluationSpec.model_validate(of_config)):
        error = refused(spec, outputs=scores(5), data=data(CLASSES))
        assert "has 5 classes, and every label is among the first 5" in str(error)
        check_evaluation(spec, outputs=scores(6), data=data(CLASSES))
    check_evaluation(default(metric="top1", max_drop=1.0), outputs=scores(2), data=None)


# What the samples can carry.


def interval(low: float, high: float, confidence: float = 0.95) -> Interval:
    return Interval(low=low, high=high, confidence=confidence, method="mcnemar", samples=400)


def judged(
    gate: Gate,
    *,
    drop: float = 0.5,
    span: tuple[float, float] | None = (-0.5, 1.5),
    p_value: float | None = None,
    latency: LatencyFigures | None = None,
    **known: Any,
) -> tuple[str, dict[str, GateClause]]:
    """Judge a model that lost ``drop`` points of 90 on 400 samples."""
    figures = MetricFigures(
        name="top1", kind="top1", unit="%", better="higher", float=90.0, quantized=90.0 - drop, drop=drop,
        samples=400, p_value=p_value, drop_interval=None if span is None else interval(*span),
        quantized_interval=interval(86.0, 92.0),
    )  # fmt: skip
    fidelity = Fidelity(
        sqnr_db=30.0, sqnr_interval_db=interval(29.0, 31.0), cosine=0.99, top1_agreement=97.5,
        top1_agreement_interval=interval(95.0, 99.0), samples=400, source="evaluation", outputs=(),
    )  # fmt: skip
    models = (ModelFigures(size_bytes=size, latency_ms=ms) for size, ms in ((1000, 4.0), (250, 3.0)))
    word, clauses = judge(gate, MeasuredPair(*models, fidelity, [figures], latency), **known)
    return word, {clause.clause: clause for clause in clauses}


@each(
    ("limits", "span", "holds"),
    [
        ({"max_drop": 1.5}, (-0.5, 1.5), True),
        ({"max_drop": 1.0}, (-0.5, 1.5), None),
        ({"max_drop": 0.0}, (0.1, 1.5), False),
        ({"min_value": 86.0}, None, True),
        ({"min_value": 88.0}, None, None),
        ({"min_sqnr_db": 29.0}, None, True),
        ({"min_sqnr_db": 30.5}, None, None),
        ({"metric": "top1_agreement", "max_drop": 5.0}, None, True),
        ({"metric": "top1_agreement", "max_drop": 4.9}, None, None),
        ({"metric": "top1_agreement", "max_drop": 0.9}, None, False),
    ],
)
def test_with_confidence_the_whole_interval_decides(limits, span, holds) -> None:
    word, clauses = judged(Gate(**limits, confidence=0.95), span=span)
    (clause,) = clauses.values()
    assert (clause.holds, clause.confidence) == (holds, 0.95)
    assert word == {True: "pass", False: "fail", None: "undecided"}[holds]
    assert (clause.why is None) == (holds is not None)


def test_an_undecided_clause_says_how_many_samples_it_takes_and_why() -> None:
    word, clauses = judged(Gate(max_drop=0.6))  # without confidence the figure decides, and its interval is told
    clause = clauses["max_drop"]
    assert (word, clause.holds, clause.confidence, clause.why) == ("pass", True, None, None)
    assert clause.interval == interval(-0.5, 1.5)
    clause = judged(Gate(max_drop=1.0, confidence=0.95))[1]["max_drop"]
    assert clause.samples_needed == 1600
    assert clause.why is not None and "400 samples cannot decide it" in clause.why
    on_the_limit = judged(Gate(max_drop=0.5, confidence=0.95))[1]["max_drop"]
    assert on_the_limit.holds is None and on_the_limit.samples_needed is None
    # what has no interval is undecided where one is asked for
    word, clauses = judged(Gate(max_drop=1.0, confidence=0.9), span=None)
    assert (word, clauses["max_drop"].confidence) == ("undecided", 0.9)
    assert "no confidence interval for top1" in clauses["max_drop"].why and "too few" in clauses["max_drop"].why
    alike = judged(Gate(max_drop=1.0, confidence=0.9), span=None, p_value=1.0)[1]["max_drop"]
    assert alike.holds is None and alike.why.endswith("the samples do not differ")
    # a broken clause fails whatever is undecided
    gate = {"max_drop": 1.0, "confidence": 0.95}
    assert judged(Gate(**gate))[0] == "undecided"
    assert judged(Gate(**gate, on_undecided="fail"))[0] == "fail"
    assert judged(Gate(**gate, max_size_bytes=249))[0] == "fail"
    assert judged(Gate(**gate, max_size_bytes=250))[0] == "undecided"


def latency(ratio: float, low: float, high: float) -> LatencyFigures:
    span = Interval(low=low, high=high, method="order_statistics", samples=20)
    return LatencyFigures(
        float_ms=4.0, quantized_ms=3.0, float_interval_ms=span, quantized_interval_ms=span, ratio=ratio,
        ratio_interval=span, verdict="faster", runs=20, batch_size=1, threads=1, load=MachineLoad(cpu_count=1),
    )  # fmt: skip


def test_latency_timed_in_pairs_is_judged_by_its_interval() -> None:
    for limit, holds, wanted in ((0.9, True, "pass"), (0.75, None, "undecided"), (0.6, False, "fail")):
        word, clauses = judged(Gate(max_latency_ratio=limit), latency=latency(0.75, 0.7, 0.8))
        clause = clauses["max_latency_ratio"]
        assert (clause.got, clause.holds, clause.samples_needed, word) == (0.75, holds, None, wanted)


def test_a_finding_may_leave_nothing_to_say_about_accuracy() -> None:
    finding = Finding(code="float-model-guesses", severity="critical", message="9 %", undermines_verdict=True)
    gate = Gate(max_drop=0.1, min_sqnr_db=90.0, max_size_bytes=250, max_latency_ratio=0.9)
    goal = GateClause(clause="goal", metric="top1", wanted=1.0, got=2.0, holds=False)
    word, clauses = judged(gate, findings=[finding], further=[goal])
    assert word == "undecided"
    assert {name: clause.holds for name, clause in clauses.items()} == {
        "goal": None, "max_drop": None, "min_sqnr_db": None, "max_size_bytes": True, "max_latency_ratio": True,
    }  # fmt: skip
    assert "float-model-guesses" in str(clauses["max_drop"].why)
    harmless = finding.model_copy(update={"undermines_verdict": False})
    assert judged(gate, findings=[harmless], further=[goal])[0] == "fail"


def goal_clause(drop: float, limit: float, samples: int, interval: Interval | None = None, **gate: Any) -> GateClause:
    """The goal of a search that reached ``drop`` of top-1."""
    autopilot = Autopilot(goal=DropGoal(max_drop=limit))
    goal, gap = autopilot.goal.model_dump(), drop - limit
    trial = TrialFigures(
        name="a", settings={}, algorithms=(), sqnr_db=20.0, evaluated=True, value=drop, gap=gap, chosen=True, seconds=1
    )
    search = Search(goal=goal, met=gap <= 0, goal_met=gap <= 0, gap=gap, ended_by="", trials=(trial,))
    outcome = AlgorithmFigures(method="autopilot", kept=True, summary="", search=search)
    top1 = MetricFigures(
        name="top1", kind="top1", unit="%", better="higher", float=90.0, quantized=90.0 - drop, drop=drop,
        samples=samples, drop_interval=interval,
    )  # fmt: skip
    nothing = ModelFigures(metrics={}, size_bytes=1)
    pair = MeasuredPair(nothing, nothing, FakeComparison.fidelity, [top1])
    (clause,) = search_clauses([autopilot], [outcome], Gate(**gate), pair)
    return clause


@each(("drop", "samples", "holds"), [(0.0, 125, None), (0.8, 125, None), (1.6, 125, False), (0.1, 1000, True)])
def test_the_goal_of_a_search_is_undecided_where_one_sample_would_decide_it_otherwise(
    drop: float, samples: int, holds: bool | None
) -> None:
    clause = goal_clause(drop, 0.5, samples)
    assert (clause.clause, clause.got, clause.holds) == ("goal", drop, holds)
    assert holds is not None or clause.samples_needed is not None


def test_the_goal_of_a_search_is_judged_with_the_confidence_that_the_gate_asks_for() -> None:
    wide = Interval(low=-0.4, high=0.6, confidence=0.95, method="mcnemar", samples=1000)
    clause = goal_clause(0.1, 0.5, 1000, wide, confidence=0.95)
    assert (clause.clause, clause.metric, clause.holds, clause.interval) == ("goal", "top1", None, wide)
    assert goal_clause(0.1, 0.7, 1000, wide, confidence=0.95).holds is True
