"""One trace from an upload to the report, over the processes of a service; and the log as JSON beside it."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from service import tracing
from service.jobs.transitions import NewJob, submit
from service.logs import CollapsingHandler, JsonFormatter
from service.tables import Job
from tests.support.collector import Collector, Seen, collecting, tree
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.tiny import Tiny
from tests.support.webhooks import answering, received
from tests.worker.running import Service
from tests.worker.workbench import Workbench, wait_for
from worker.stages import MOST_SPANS, StageSpans

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = SpanContext(
    int(TRACE_ID, 16),
    0xB7AD6B7169203331,
    is_remote=False,
    trace_flags=TraceFlags(1),
    trace_state=TraceState([("a", "b")]),
)
STAGES = {"stage load", "stage prepare", "stage plan", "stage statistics", "stage emit", "stage evaluation"}


@pytest.fixture
def receiver() -> Iterator[Scripted]:
    with scripted(answering(200)) as running:
        yield running


# What Celery writes past the loggers as it is asked to stop.
GOODBYE = {"", "worker: Warm shutdown (MainProcess)"}


def lines_of(service: Service) -> list[dict[str, Any]]:
    return [json.loads(line) for line in service.log().splitlines() if line not in GOODBYE]


def with_event(lines: list[dict[str, Any]], event: str, **ids: object) -> dict[str, Any]:
    return next(line for line in lines if line.get("event") == event and ids.items() <= line.items())


class Found:
    """The spans of one trace by their names."""

    def __init__(self, spans: list[Seen]) -> None:
        self.spans = spans

    def one(self, name: str, parent: Seen | None = None) -> Seen:
        (found,) = [
            seen for seen in self.spans if seen.name == name and (parent is None or seen.parent_id == parent.span_id)
        ]
        return found

    def of_job(self, name: str, job_id: str) -> Seen:
        (found,) = [
            seen for seen in self.spans if seen.name == name and seen.attributes.get("quantmill.job_id") == job_id
        ]
        return found


@pytest.mark.slow
def test_one_trace_goes_from_the_upload_to_the_report(tmp_path: Path, tiny: Tiny, receiver: Scripted) -> None:
    address = f"http://127.0.0.1:{receiver.port}"
    variables = {"OTEL_BSP_SCHEDULE_DELAY": "200", "QUANTMILL_EGRESS_ALLOWED": address, "QUANTMILL_LOG_FORMAT": "json"}
    with collecting() as collector:
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        with Service(tmp_path / "home", **variables) as service:
            service.client.create_webhook(f"{address}/hook", ["job.succeeded"])
            odd = {"traceparent": "00-zz", "X-Request-ID": "malformed"}
            assert httpx.get(f"{service.url}/v1/jobs?page=token", headers=odd).status_code < 500
            with trace.use_span(NonRecordingSpan(PARENT)):
                model = service.client.push_model(tiny.model)
                calibration = service.client.push_dataset(tiny.calibration)
                evaluation = service.client.push_dataset(tiny.evaluation)
            service.client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS)
            for data in (calibration, evaluation):
                service.client.wait_ready(data, timeout_seconds=PATIENCE_SECONDS)
            with trace.use_span(NonRecordingSpan(PARENT)):
                job = service.client.submit(model=model.id, calibration=calibration.id, evaluation=evaluation.id)
            service.client.wait_succeeded(job, timeout_seconds=PATIENCE_SECONDS)
            with trace.use_span(NonRecordingSpan(PARENT)):
                service.client.report(job.id)
            (told,) = wait_for(lambda: received(receiver), message="no event was sent")
            assert service.stop() == 0
        spans = collector.of(TRACE_ID)
        print(tree(spans))
        check_chain(Found(spans), job.id, told.headers)
        (odd_one,) = [seen for seen in collector.spans if seen.attributes.get("quantmill.request_id") == "malformed"]
        assert (odd_one.parent_id, odd_one.attributes["url.query"]) == ("", "REDACTED")
        assert odd_one.trace_id != TRACE_ID
        assert not [seen for seen in collector.spans if "/healthz" in seen.name or "/readyz" in seen.name]
        check_log(lines_of(service), service.client.place.url, job.id, job.request_id)


def check_chain(found: Found, job_id: str, sent: dict[str, str]) -> None:
    client = f"{PARENT.span_id:016x}"
    upload = [seen for seen in found.spans if seen.name == "upload.receive"]
    assert len(upload) == 3
    assert {seen.service for seen in upload} == {"quantmill-api"}
    request = found.one("POST /v1/jobs")
    assert request.parent_id == client
    submitted = found.of_job("job.submit", job_id)
    assert submitted.parent_id == request.span_id
    for name in ("job.dispatch", "job.attempt"):
        assert found.of_job(name, job_id).parent_id == submitted.span_id
    attempt = found.of_job("job.attempt", job_id)
    assert (attempt.service, attempt.attributes["quantmill.outcome"]) == ("quantmill-worker", "succeeded")
    run = found.one("job.run", attempt)
    stages = [seen for seen in found.spans if seen.parent_id == run.span_id]
    assert {seen.name for seen in stages} >= STAGES
    assert all(run.began_ns <= seen.began_ns <= seen.ended_ns <= run.ended_ns for seen in stages)
    found.one("job.prepare", attempt)
    found.one("job.start", attempt)
    found.one("job.publish", attempt)
    told = found.one("webhook.send", found.one("job.conclude", attempt))
    assert told.service == "quantmill-reconciler"
    assert sent["traceparent"] == f"00-{TRACE_ID}-{told.span_id}-01"
    assert sent["tracestate"] == "a=b"
    assert found.one("GET /v1/jobs/{job_id}/report").parent_id == client
    known = {seen.span_id for seen in found.spans}
    assert {seen.parent_id for seen in found.spans if seen.parent_id not in known} == {client}


def check_log(lines: list[dict[str, Any]], url: str, job_id: str, request_id: str | None) -> None:
    uploaded = with_event(lines, "upload.completed", trace_id=TRACE_ID)
    assert {"request_id", "tenant_id", "span_id", "time", "level", "logger", "message"} <= set(uploaded)
    claimed = with_event(lines, "job.claimed", job_id=job_id)
    assert (claimed["attempt"], claimed["request_id"], claimed["trace_id"]) == (1, request_id, TRACE_ID)
    assert {"tenant_id", "worker_id"} <= set(claimed)
    assert {line["logger"].partition(".")[0] for line in lines} >= {"service", "worker", "uvicorn"}
    idle = with_event(lines, "worker.share")
    assert not {"job_id", "request_id", "trace_id"} & set(idle)


@pytest.mark.slow
@pytest.mark.redis
def test_a_collector_that_is_away_costs_nothing_but_its_spans(tmp_path: Path, tiny: Tiny, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as away:  # it takes connections and answers nothing
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{away.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=collectors-own-secret",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "QUANTMILL_LOG_FORMAT": "json",
            "QUANTMILL_BROKER_URL": redis_url,
        }
        with Service(tmp_path / "home", **variables) as service:
            job = service.client.submit(**service.upload(tiny))
            service.client.wait_succeeded(job, timeout_seconds=PATIENCE_SECONDS)
            environment = Path(f"/proc/{service.one('cli worker')}/environ")
            assert b"collectors-own-secret" not in environment.read_bytes()
            assert service.stop() == 0
        lines = lines_of(service)
        assert [line for line in lines if line["logger"].startswith("celery")], "Celery logs through it, too"
        assert with_event(lines, "tracing.started")["message"].startswith("tracing.started service=quantmill-")


@pytest.fixture
def worker_log() -> Iterator[io.StringIO]:
    """What the worker's loggers write as JSON."""
    handler, written, logger = CollapsingHandler(), io.StringIO(), logging.getLogger("worker")
    handler.setStream(written)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield written
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_the_words_of_a_runner_that_fails_carry_the_ids_of_its_attempt(
    bench: Workbench, worker_log: io.StringIO
) -> None:
    with trace.use_span(NonRecordingSpan(PARENT)):
        job_id = bench.submit(request_id="req_asked")
    assert bench.job(job_id).trace_context == {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01", "tracestate": "a=b"}
    supervisor = bench.supervisor("sys.stderr.write('one\\ntwo \\u2028\\n'); sys.exit(1)", worker_id="host:1")
    supervisor.run(job_id)
    logging.getLogger("worker").info("idle")
    lines = [json.loads(line) for line in worker_log.getvalue().splitlines()]
    said = with_event(lines, "runner.stderr")
    ids = {"job_id": job_id, "attempt": 1, "tenant_id": "default", "worker_id": "host:1", "request_id": "req_asked"}
    assert {**ids, "trace_id": TRACE_ID}.items() <= said.items()
    assert "one\ntwo" in said["message"]
    assert set(lines[-1]) == {"time", "level", "logger", "message"}, "nothing of the attempt is left"


def test_a_trace_that_is_malformed_or_too_long_is_not_passed_on(bench: Workbench) -> None:
    assert tracing.current_ids() == {}
    for stored in (None, {}, {"traceparent": "00-zz"}, {"traceparent": f"ff-{TRACE_ID}-b7ad6b7169203331-01"}):
        with tracing.span("job.attempt", {}, parent=tracing.remote(stored)):
            assert tracing.carrier() is None
    state = TraceState([("a", "b" * 250), ("c", "d" * 256), ("e", "f" * 9)])
    long = SpanContext(PARENT.trace_id, PARENT.span_id, is_remote=True, trace_state=state)
    with trace.use_span(NonRecordingSpan(long)), bench.database.write() as session:
        job = submit(session, NewJob("default", "inspect_model", model_id=bench.add_model()))
        assert isinstance(job, Job)
        assert job.trace_context == {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-00"}


def test_the_spans_of_a_runner_are_bounded_whatever_it_tells() -> None:
    stages = StageSpans()
    for number in range(3 * MOST_SPANS):
        stages.enter(f"{number % 2}" * 1000)
    stages.end()
    assert stages._begun == MOST_SPANS


def test_a_collector_shows_a_trace_as_a_tree() -> None:
    def seen(name: str, span_id: str, parent_id: str, began: float) -> Seen:
        return Seen("t", span_id, parent_id, name, "api", {}, round(began * 1e9), round((began + 1) * 1e9))

    collector = Collector()
    collector.server.server_close()
    collector.spans = [seen("b", "2", "1", 11), seen("a", "1", "0", 10), seen("c", "3", "2", 12)]
    assert tree(collector.of("t")).splitlines() == [
        "   0.000 s    1.000 s  a  [api]",
        "   1.000 s    1.000 s    b  [api]",
        "   2.000 s    1.000 s      c  [api]",
    ]
