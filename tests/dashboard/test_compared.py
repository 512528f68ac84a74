"""What heads the columns of a comparison, and one p-value for one question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.comparison.evidence import Paired, compared_report
from service.comparison.pairing import MeanDifference, paired
from service.comparison.samples import Decisions
from service.comparison.schemas import ComparedJob, ComparedPair, Comparison, ConfigDifference, PairedMetric
from service.comparison.service import _paired_metrics
from service.contracts.report import Interval
from service.dashboard import compared
from tests.support.reports import full_report


def of_job(number: int, **changes: Any) -> ComparedJob:
    body: dict[str, Any] = {
        "id": f"job_{number}", "name": None, "labels": {}, "model_id": "mdl_1", "model": "net@1", "preset": "xint8",
        "verdict": "none", "seconds": 1.0, "engine_version": "1", "metrics": [], "sqnr_db": 30.0,
        "top1_agreement": 99.0,
        "float_size_bytes": 4000, "quantized_size_bytes": 1000, "latency_ratio": None, "latency_ratio_interval": None,
    }  # fmt: skip
    return ComparedJob.model_validate(body | changes)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"algorithms": ["adaround"]}, ["xint8", "xint8 + AdaRound"]),
        ({"preset": "int8", "algorithms": ["bias_correction"]}, ["xint8", "int8"]),
        ({"model": "net@2"}, ["net@1", "net@2"]),
        ({"model": "net@2", "algorithms": ["adaround"]}, ["net@1, xint8", "net@2, xint8 + AdaRound"]),
        ({"evaluation_dataset_id": "dst_1"}, ["evaluated on no data", "evaluated on val@3"]),
        ({"evaluation_dataset_id": "dst_123456"}, ["evaluated on no data", "evaluated on deleted dataset …123456"]),
        ({"name": "again"}, ["xint8", "again"]),
    ],
)
def test_columns_are_headed_by_what_differs(changes: dict[str, Any], wanted: list[str]) -> None:
    assert compared.titles([of_job(1), of_job(2, **changes)], {"dst_1": "val@3"}) == wanted


def test_other_targets_are_told() -> None:
    other = ConfigDifference(pointer="/target", values=("onnxruntime_cpu", "amd_npu_cnn"))
    found = Comparison(jobs=(), config_differences=(other,), pairs=(), layers=(), layers_more=0)
    assert compared.targets(found) == ["onnxruntime_cpu", "amd_npu_cnn"]
    assert compared.targets(found.model_copy(update={"config_differences": ()})) == []


def test_critical_findings_of_a_report_are_counted() -> None:
    report = full_report()
    critical = report.findings[0].model_copy(update={"severity": "critical"})
    told = compared_report(report.model_copy(update={"findings": (critical, critical)}))
    assert told.critical_findings == 2


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, confidence=0.95, method="student", samples=20)


def cells(name: str, *jobs: ComparedJob, pair: ComparedPair | None = None) -> list[compared.Cell]:
    pairs = [pair or ComparedPair(first="job_1", second=one.id, measure=None, reason="other data") for one in jobs[1:]]
    found = Comparison(jobs=jobs, config_differences=(), pairs=tuple(pairs), layers=(), layers_more=0)
    return dict(compared.rows(found))[name]


def test_a_latency_is_told_apart_where_the_intervals_are() -> None:
    first = of_job(1, latency_ratio=1.0, latency_ratio_interval=interval(0.9, 1.1))
    near = of_job(2, latency_ratio=0.9, latency_ratio_interval=interval(0.8, 1.0))
    far = of_job(3, latency_ratio=0.5, latency_ratio_interval=interval(0.45, 0.55))
    told = cells("Latency", first, near, far)
    assert [cell.value for cell in told] == [
        "same as float",
        "1.11x faster than float (not significant)",
        "2.00x faster than float",
    ]
    assert (told[1].note, told[1].change) == ("Latency difference not significant", None)
    assert told[2].change is not None and (told[2].change.words, told[2].change.tone) == ("2.00x faster", "good")
    simulated = cells("Latency", first, far.model_copy(update={"latency_not_representative": True}))[1]
    assert simulated.change is None and simulated.note == "not representative of the target"


def test_a_smaller_model_is_better_and_a_lower_sqnr_worse() -> None:
    first, second = of_job(1), of_job(2, quantized_size_bytes=900, sqnr_db=29.0)
    size, sqnr = cells("Size", first, second), cells("SQNR", first, second)
    assert size[0].note == "75.0 % smaller than float"
    assert size[1].change is not None and (size[1].change.words, size[1].change.tone) == ("10.0 % smaller", "good")
    assert sqnr[1].change is not None and (sqnr[1].change.words, sqnr[1].change.tone) == ("-1.00 dB", "bad")


def decisions(wrong: set[int]) -> Decisions:
    expected = np.zeros(40, np.int64)
    quantized = np.array([1 if k in wrong else 0 for k in range(40)])
    return Decisions(expected=expected, quantized=quantized, labeled=True)


def test_the_share_of_right_decisions_has_the_p_value_of_mcnemars_test() -> None:
    pairing = paired(decisions({3}), decisions({7, 8, 9}))
    assert pairing is not None
    mean = MeanDifference(5.0, (-4.0, 14.0), 0.31, "bootstrap", 40)
    report = compared_report(full_report())
    names = [metric.name for metric in report.metrics]
    assert names[0] == "top1"
    told = {one.name: one for one in _paired_metrics(Paired(pairing, None, dict.fromkeys(names, mean)), report, report)}
    assert (told["top1"].p_value, told["top1"].interval.method) == (pairing.p_value, "mcnemar")
    assert told["top1"].drop == pytest.approx(5.0)
    assert all(one.interval.method == "bootstrap" for name, one in told.items() if name != "top1")
    only = {one.name: one for one in _paired_metrics(Paired(None, "why", {"top1": mean}), report, report)}
    assert only["top1"].p_value == 0.31, "without classes the means are all there is"


def test_a_page_shows_each_question_once() -> None:
    figures = {"unit": "%", "better": "higher", "drop": 1.0, "interval": interval(0.5, 1.5), "p_value": 0.01}
    top1, top5 = (PairedMetric(name=name, significant=True, **figures) for name in ("top1", "top5"))
    body = {"first": "job_1", "second": "job_2", "reason": None, "drop_percent": 1.0, "p_value": 0.01}
    pair = ComparedPair(**body, measure="accuracy", significant=True, metrics=(top1, top5))
    assert [one.name for one, _ in compared.other_metrics(pair)] == ["top5"]
    assert compared.pair_words(pair) == "Significantly worse: −1.00 points accuracy, p = 0.01."
    agreeing = pair.model_copy(update={"measure": "agreement", "significant": False})
    assert [one.name for one, _ in compared.other_metrics(agreeing)] == ["top1", "top5"]
    assert compared.pair_words(agreeing).startswith("Difference not significant: −1.00 points agreement")
    cell = cells("Top-1 agreement", of_job(1), of_job(2, top1_agreement=98.0), pair=agreeing)[1]
    assert cell.note == "p = 0.01"
