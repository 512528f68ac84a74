"""Evaluations in real runners: the figures are onnxruntime's, and fit those of the quantization that made the model."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

from tests.worker.workbench import QUICK
from worker.supervisor import Supervisor

pytestmark = pytest.mark.slow

CONFIG = {"preset": "int8", "evaluation": {"latency_runs": 1}}


def top1(path, evaluation) -> float:
    with np.load(evaluation) as archive:
        data = dict(archive)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (found.name for found in session.get_inputs())
    decided = session.run(None, {name: data[name]})[0].argmax(axis=1)
    return 100.0 * float((decided == data["labels"]).mean())


def test_a_model_measured_by_a_real_runner(bench, tiny):
    job_id = bench.submit(
        kind="evaluate", model_id=bench.add_model({"net.onnx": tiny.model.read_bytes()}),
        evaluation_dataset_id=bench.add_dataset(tiny.evaluation.read_bytes()),
        config={"evaluation": {"latency_runs": 1, "gate": {"min_value": 100.0}}},
    )  # fmt: skip
    Supervisor(bench.settings, bench.database, bench.store, timing=QUICK).run(job_id)
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
    report = json.loads(bench.store.path(bench.artifacts(job_id)["report"].sha256).read_bytes())
    expected = top1(tiny.model, tiny.evaluation)
    assert 0.0 < expected < 100.0
    assert report["model"]["metrics"]["top1"] == pytest.approx(expected, abs=0.01)
    assert report["verdict"] == "fail"
