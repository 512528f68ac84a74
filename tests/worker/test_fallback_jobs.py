"""A job whose quantized model is too slow gives the float file, and report, job and artifact agree on it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_artifact_is_the_model_that_the_report_is_about(service, inputs, tiny, tmp_path):
    client = service.client
    gate = {"max_latency_ratio": 1e-6, "on_fail": "fallback"}
    evaluation = {"gate": gate, "latency_runs": 1, "fallback_seconds": 0}
    job = client.submit(**inputs, config={"preset": "int8", "evaluation": evaluation})
    ended = client.wait_succeeded(job.id)
    report = client.report(job.id)
    made = tmp_path / "returned.onnx"
    client.download(job.id, made)
    assert made.read_bytes() == tiny.model.read_bytes()
    assert report.fallback is not None and report.fallback.chosen.kind == "float"
    assert (report.verdict, ended.verdict) == ("fail", "fail")
    assert ended.figures is not None and ended.figures.latency_ratio == 1.0
    assert ended.figures.quantized_size_bytes == len(made.read_bytes()) == report.quantized.size_bytes
    assert report.manifest.timed_choice
    (artifact,) = (item for item in client.artifacts(job.id) if item.kind == "model")
    assert artifact.sha256 == report.manifest.output_sha256 == report.manifest.model_sha256
