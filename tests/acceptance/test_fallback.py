"""A job whose quantized model is too slow, from end to end: what a pipeline is told of it, and what it downloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantmill.webhooks import verify
from service.client import Client
from tests.fault.harness.installation import Installation
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import scripted
from tests.support.tiny import make_tiny
from tests.support.webhooks import PEPPER, answering, received
from tests.worker.workbench import wait_for


@pytest.mark.slow
@pytest.mark.long
def test_a_pipeline_is_told_that_the_float_model_came_back(tmp_path: Path, _sqlite_template: Path) -> None:
    """No model is as fast as the limit, and no quantized one as near to the float one as the other condition wants."""
    tiny = make_tiny(tmp_path)
    gate = {"max_latency_ratio": 1e-6, "min_sqnr_db": 150.0, "on_fail": "fallback"}
    with (
        scripted(answering(200)) as receiver,
        Installation(
            tmp_path / "installation",
            servers=None,
            template=_sqlite_template,
            QUANTMILL_KEY_PEPPER=PEPPER,
            QUANTMILL_EGRESS_ALLOWED=f"http://127.0.0.1:{receiver.port}",
        ) as installation,
        Client(installation.url, patience_seconds=PATIENCE_SECONDS) as client,
    ):
        hook = client.create_webhook(f"http://127.0.0.1:{receiver.port}/", ["job.succeeded"])
        jobs = [
            client.wait(
                client.submit(
                    model=client.push_model(tiny.model, name="net"),
                    calibration=client.push_dataset(tiny.calibration, name="calibration"),
                    config={"preset": "int8", "evaluation": {"fallback_seconds": 0, **evaluation}},
                )
            )
            for evaluation in ({"gate": gate}, {})
        ]
        assert [(job.state, job.verdict, job.fallback) for job in jobs] == [
            ("succeeded", "fail", "float"),
            ("succeeded", "none", None),
        ]
        told = client.report(jobs[0].id).fallback
        assert told is not None and told.chosen.kind == "float"
        client.download(jobs[0].id, tmp_path / "back.onnx")
        wait_for(lambda: len({request.id for request in received(receiver)}) == 2, message="webhooks are missing")
    assert (tmp_path / "back.onnx").read_bytes() == tiny.model.read_bytes()
    events = [verify(request.body, request.headers, hook.secret)["data"] for request in received(receiver)]
    assert {event["id"]: (event["verdict"], event["fallback"]) for event in events} == {
        jobs[0].id: ("fail", "float"),
        jobs[1].id: ("none", None),
    }
