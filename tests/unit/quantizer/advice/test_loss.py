"""When advice is looked for, what counts as help, and what hurts, as the report tells it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.evaluation import EvaluationSpec
from service.contracts.report import LayerFigures, Report
from service.contracts.report.layers import Score
from tests.support.front import make_report
from worker.quantizer.advice.damage import Damage, Harm, HarmKind, HarmPlace, causes_of, with_blame
from worker.quantizer.advice.trial import AccuracyLoss, find_loss
from worker.quantizer.evaluation.certainty import Evidence, PairedFacts
from worker.quantizer.evaluation.loss import LossEstimate
from worker.quantizer.refine.judge import Scored

TOP1 = {"name": "top1", "kind": "top1", "unit": "%", "better": "higher", "samples": 438}
INTERVAL = {"method": "mcnemar", "samples": 438}


def report(
    *,
    before: float = 86.0,
    after: float = 41.0,
    sqnr_db: float | None = 2.0,
    source: str = "evaluation",
    gate: list[dict[str, Any]] | None = None,
    metric: bool = True,
    findings: list[dict[str, Any]] | None = None,
    lost: str | None = None,
    **figures: Any,
) -> Report:
    document = make_report().to_json_dict()
    document["fidelity"] |= {"sqnr_db": sqnr_db, "samples": 438, "source": source, "loss": lost}
    entry = {**TOP1, "float": before, "quantized": after, "drop": round(before - after, 4), **figures}
    document |= {"metrics": [entry] if metric else [], "gate": gate or [], "findings": findings or []}
    return Report.model_validate(document)


def loss(**arguments: Any) -> AccuracyLoss | None:
    return find_loss(report(**arguments), EvaluationSpec())


def found(**arguments: Any) -> AccuracyLoss:
    result = loss(**arguments)
    assert result is not None
    return result


def score(value: float | None, sqnr_db: float | None = 2.0) -> Scored:
    """A model that is right about the first samples, as many as its value tells."""
    right = None if value is None else round(4.38 * value)
    evidence = None if right is None else Evidence(PairedFacts("1" * right + "0" * (438 - right)))
    return Scored(Score(sqnr_db=sqnr_db, metric="top1", value=value), evidence)


def test_where_a_loss_is_read() -> None:
    assert "86" in found().words and found().by_metric
    assert loss(after=85.5) is None
    assert loss(after=84.5) is not None
    # without a metric sqnr tells
    assert found(metric=False, sqnr_db=9.0).name == "sqnr_db"
    assert loss(metric=False, sqnr_db=11.0) is None
    assert found(metric=False, sqnr_db=18.0, lost="2 % of decisions").words == "SQNR 18.0 dB; 2 % of decisions"
    # what is seen by estimate alone is worth a word, but no trials
    assert found(metric=False, sqnr_db=18.0, lost="2 % of decisions").is_small
    assert not found(metric=False, sqnr_db=9.0, lost="2 % of decisions").is_small and not found().is_small
    assert loss(metric=False, sqnr_db=2.0, source="random") is None
    # a metric no better than guessing tells nothing
    guessing = {"before": 21.0, "after": 1.0, "chance": 20.0}
    interval = {"low": 17.0, "high": 25.0, "method": "wilson", "samples": 438}
    assert loss(**guessing, float_interval=interval, sqnr_db=30.0) is None
    assert not found(**guessing, float_interval=interval, sqnr_db=3.0).by_metric
    # and so does what undermines the verdict
    finding = {"code": "float-at-chance", "severity": "critical", "message": "-", "undermines_verdict": True}
    assert not found(findings=[finding]).by_metric
    # a broken gate is a loss only where it is about accuracy
    drop = {"clause": "max_drop", "metric": "top1", "wanted": 0.1, "got": 0.5, "holds": False}
    assert "max_drop" in found(after=85.5, sqnr_db=30.0, gate=[drop]).words
    size = {"clause": "max_size_bytes", "wanted": 1, "got": 2, "holds": False}
    assert loss(after=85.5, sqnr_db=30.0, gate=[size]) is None
    assert loss(after=85.5, sqnr_db=30.0, gate=[{**drop, "holds": None}]) is None


@pytest.mark.parametrize(("low", "lost"), [(0.4, True), (-0.4, False)])
def test_an_interval_decides_where_there_is_one(low: float, lost: bool) -> None:
    interval = {"low": low, "high": 6.0, **INTERVAL}
    assert (loss(after=83.0, drop_interval=interval) is not None) == lost


def test_what_mends_a_loss_and_what_helps() -> None:
    assert found().is_mended(score(85.5)) and not found().is_mended(score(84.5))
    drop = {"clause": "max_drop", "metric": "top1", "wanted": 0.2, "got": 45.0, "holds": False}
    strict = found(gate=[drop])
    assert not strict.is_mended(score(85.5)) and strict.is_mended(score(85.9))
    assert found(metric=False).is_mended(score(None, 21.0))
    lossy = LossEstimate({"y"})
    lossy.update([("y", np.eye(4), np.eye(4)[::-1])])
    assert not found(metric=False).is_mended(replace(score(None, 21.0), estimate=lossy))
    clause = {"clause": "min_sqnr_db", "wanted": 40.0, "got": 2.0, "holds": False}
    assert not found(metric=False, gate=[clause]).is_mended(score(None, 21.0))
    # help is more than chance in the metric or else a better sqnr
    lost = found()
    before = score(41.0)
    assert lost.helped(score(84.0, 2.0), before)
    assert not lost.helped(score(30.0, 9.0), before)
    # four samples more are no evidence: SQNR decides
    assert lost.helped(score(42.0, 4.0), before) and not lost.helped(score(42.0, 1.0), before)
    assert not lost.helped(score(40.9, 4.0), before), "the figure that is told is worse"
    assert not lost.helped(score(None, 9.0), before) and not lost.helped(score(84.0, None), before)


NODES = [f"n{k}" for k in range(12)]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    harms = {}
    for kind in draw(st.lists(st.sampled_from(list(HarmKind)), unique=True, max_size=4)):
        names = draw(st.lists(st.sampled_from(["", *NODES]), min_size=1, unique=True))
        noises = sorted((draw(st.floats(1e-6, 1.0)) for _ in names), reverse=True)
        places = tuple(HarmPlace(node, noise, "a fact") for node, noise in zip(names, noises, strict=True))
        harms[kind] = Harm(kind, draw(st.floats(1e-4, 1.0)), places)
    return Damage(harms, {})


def rows(*groups: tuple[str, ...]) -> list[LayerFigures]:
    return [LayerFigures(name=group[0], op="Conv", nodes=group) for group in groups]


@given(damages())
def test_parts_are_of_one_whole_and_the_worst_come_first(damage: Damage) -> None:
    causes = causes_of(damage)
    parts = [cause.error_percent for cause in causes]
    assert parts == sorted(parts, reverse=True)
    assert sum(parts) <= 100.1
    for cause in causes:
        places = [place.error_percent for place in cause.places]
        assert places == sorted(places, reverse=True)
        harm = damage.harms[HarmKind(cause.kind)]
        assert len(places) + cause.places_left_out == len(harm.places)
        if not cause.places_left_out:
            assert abs(sum(places) - cause.error_percent) < 0.1
    told = with_blame(rows(*((node,) for node in NODES)), damage)
    nowhere = sum(
        harm.noise * place.noise / sum(one.noise for one in harm.places)
        for harm in damage.harms.values()
        for place in harm.places
        if not place.node
    )
    if damage.harms:
        whole = sum(row.error_percent or 0.0 for row in told) + 100 * nowhere / damage.total
        assert abs(whole - 100) < 0.5
    else:
        assert causes == () and all(row.error_percent is None for row in told)


def test_a_row_has_the_error_of_all_its_nodes_and_one_in_float_has_none() -> None:
    harm = Harm(HarmKind.WEIGHT_ROUNDING, 0.5, (HarmPlace("n0", 0.3, "a"), HarmPlace("n1", 0.2, "b")))
    left = LayerFigures(name="n1", op="Relu", nodes=("n1",), reason="left in float", reason_code="left-in-float")
    both, alone, float_ = with_blame([*rows(("n0", "n1"), ("n2",)), left], Damage({harm.kind: harm}, {}))
    assert (both.error_percent, alone.error_percent, float_.error_percent) == (100.0, 0.0, None)
