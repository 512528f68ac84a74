"""Average precision of a real detector whose decoding is outside of its graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.detection import METRICS, MODEL, sources
from service.contracts.evaluation import EvaluationSpec
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.evaluation.command import evaluated
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS


def test_the_figures_of_the_models_own_evaluation(tmp_path: Path) -> None:
    spec = EvaluationSpec.model_validate({"metrics": [METRICS[0]], "latency_runs": 1})
    data = sources(required_data_dir(), tmp_path)[1]
    model = required_data_dir() / MODEL
    report = evaluated(model, data, None, threads=1, run=SilentRun(), spec=spec).report
    # AP50 70.54 and AP50-95 46.73, computed apart from this project with the same suppression
    assert report.model.metrics["map"] == pytest.approx(46.73, abs=0.02)
    assert report.model.metric_details["map"]["ap50"] == pytest.approx(70.54, abs=0.02)
