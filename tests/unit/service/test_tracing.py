"""Whether spans are sent is said by OpenTelemetry's variables; what keeps them from being sent is in the log."""

from __future__ import annotations

import logging
import os
import sys

import pytest
from opentelemetry import trace

from service import tracing

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SDK = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    caplog.set_level(logging.INFO, "service.tracing")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ""),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, ""),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc is not supported"),
        ({ENDPOINT: "http://127.0.0.1:1"}, "pip install 'quantmill[otel]'"),
    ],
)
def test_spans_that_are_wanted_and_not_sent_are_a_warning(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, SDK, None)  # as if the extra were not installed
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with tracing.exporting("api"), tracing.span("job.run", {}) as opened:
        assert not opened.is_recording()
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in os.environ
    assert [said in record.getMessage() for record in caplog.records] == ([True] if said else [])


def test_a_request_belongs_to_the_trace_that_its_client_names() -> None:
    sent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with tracing.request_span("req_1", sent, b"token=secret"):
        assert tracing.carrier() == sent
    for odd in ({}, {"traceparent": "00-zz"}, {"tracestate": "a=b"}):
        with tracing.request_span("req_2", odd, b""):
            assert tracing.carrier() is None
    assert not trace.get_current_span().get_span_context().is_valid
