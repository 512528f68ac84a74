"""Requests of the clients belong to the caller's trace, and nothing is loaded to find out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from service.client import Client
from service.client.trace import VARIABLE, trace_headers
from service.tables import Job
from tests.support.front import Front
from tests.support.source import ROOT

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALLER = SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(1))


def stored(worker: Front, job_id: str) -> dict[str, str] | None:
    with worker.app.database.read() as session:
        return session.get_one(Job, job_id).trace_context


def test_the_callers_context_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert trace_headers() == {}
    for malformed in ("nonsense", f"{TRACEPARENT}\r\nX-Evil: 1"):
        monkeypatch.setenv(VARIABLE, malformed)
        assert trace_headers() == {}
    monkeypatch.setenv(VARIABLE, TRACEPARENT)
    assert trace_headers() == {"traceparent": TRACEPARENT}
    with trace.use_span(NonRecordingSpan(CALLER)):
        assert trace_headers() == {"traceparent": f"00-{0xA:032x}-{0xB:016x}-01"}


def test_a_job_remembers_the_trace_of_its_submission(client: Client, worker: Front) -> None:
    """The service itself records no spans here: the context passes through."""
    body = worker.job_body()
    with trace.use_span(NonRecordingSpan(CALLER)):
        job = client.submit(model=body["model_id"], calibration=body["calibration_dataset_id"])
    assert stored(worker, job.id) == {"traceparent": f"00-{0xA:032x}-{0xB:016x}-01"}
    untraced = client.submit(model=body["model_id"], calibration=body["calibration_dataset_id"], name="untraced")
    assert stored(worker, untraced.id) is None
    odd = worker.http.post("/v1/jobs", json=body, headers={"traceparent": "00-zz-zz-01"})
    assert stored(worker, odd.json()["id"]) is None


@pytest.mark.slow
def test_a_client_loads_no_opentelemetry() -> None:
    code = (
        "import sys, quantmill; from service.client.trace import trace_headers; quantmill.Client; "
        "assert trace_headers() == {}; assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={"PATH": "", "PYTHONPATH": str(ROOT)})
