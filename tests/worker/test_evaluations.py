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
    """By onnxruntime alone, in percent."""
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


@pytest.mark.long
def test_a_quantized_model_measured_alone_and_beside_its_float_one(service, inputs, tiny, tmp_path):
    client = service.client
    quantization = client.submit(**inputs, config=CONFIG)
    client.wait_succeeded(quantization.id)
    made = tmp_path / "quantized.onnx"
    client.download(quantization.id, made)
    quantized = client.wait_ready(client.push_model(made, name="made elsewhere"))
    given = {"model": quantized.id, "evaluation": inputs["evaluation"]}
    alone = client.submit_evaluation(**given, spec={"latency_runs": 1, "gate": {"min_value": 100.0}})
    beside = client.submit_evaluation(
        **given, reference=inputs["model"], spec={"latency_runs": 1, "gate": {"min_sqnr_db": 1.0}}
    )
    for job in (alone, beside):
        client.wait_succeeded(job.id)
    before = client.report(quantization.id)
    own, other = client.evaluation_report(alone.id), client.evaluation_report(beside.id)

    measured = top1(made, tiny.evaluation)
    assert own.model.metrics["top1"] == pytest.approx(measured, abs=0.01)
    assert own.verdict == ("pass" if measured == 100.0 else "fail")
    assert (own.reference, own.fidelity, own.latency) == (None, None, None)
    assert own.manifest.model_sha256 == before.manifest.output_sha256
    assert own.model.provenance is not None
    assert (other.verdict, other.fidelity) == ("pass", before.fidelity)
    expected = {metric.name: metric for metric in before.metrics}
    for metric in other.metrics:
        twin = expected[metric.name]
        assert (metric.value, metric.reference_value, metric.drop) == (twin.quantized, twin.float_, twin.drop)
        assert metric.flips == twin.flips
    assert [stage.name for stage in other.stages] == ["load", "evaluation", "latency"]

    for pair in client.compare([quantization.id, alone.id, beside.id]).pairs:
        assert (pair.measure, pair.drop_percent, pair.flips.lost, pair.flips.won) == ("accuracy", 0.0, 0, 0)
    assert [job.id for job in client.jobs(kind="evaluate", limit=2)] == [beside.id, alone.id]
