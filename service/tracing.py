"""Traces: the W3C trace context from a request to the end of its job, and spans for OpenTelemetry.

The context passes through every process, also where no spans are recorded: a span then stands for its parent and costs
nothing. Spans are recorded and sent while ``exporting`` is open in a process whose environment names a collector.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode
from opentelemetry.trace import SpanKind as SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.contracts.base import VERSION
from service.process import forget_variables

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

Carrier = dict[str, str]  # headers of W3C Trace Context: traceparent, and tracestate where there is one
Attributes = Mapping[str, str | int]
_W3C = TraceContextTextMapPropagator()
_TRACESTATE = "tracestate"
# What the specification has everybody pass on at least; a longer one is not stored.
_MOST_TRACESTATE_CHARS = 512
# For the last spans, as a process ends. A collector that is away is not waited for longer.
_FLUSH_SECONDS = 3.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
# They hold keys of the collector.
_SECRETS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# Requests without spans: probes, which come all the time, and paths with a token in them that lets in who reads it.
_UNTRACED = ("/healthz", "/readyz", "/metrics", "/shared/")
_tracer = trace.get_tracer("quantmill", VERSION)


def carrier() -> Carrier | None:
    """The current context, as headers of a request and as it is stored; None: there is none."""
    found: Carrier = {}
    _W3C.inject(found)
    if len(found.get(_TRACESTATE, "")) > _MOST_TRACESTATE_CHARS:
        del found[_TRACESTATE]
    return found or None


def remote(stored: Mapping[str, str] | None) -> Context:
    """The context that ``stored`` tells of; without one, or with one that is malformed, a trace of its own begins."""
    return _W3C.extract(stored or {}, context=Context())


def current_ids() -> dict[str, str]:
    """``trace_id`` and ``span_id`` of the current context in hexadecimal digits; empty: there is none."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


def begin_span(name: str) -> Span:
    """A span below the current one; its caller ends it."""
    return _tracer.start_span(name)


@contextmanager
def span(
    name: str, attributes: Attributes, *, parent: Context | None = None, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """A span around a block, and the current one in it. What the block raises is named by its type alone.

    Args:
        name: of few different ones.
        attributes: get names that begin with ``quantmill.``.
        parent: see ``remote``; default: the current span.
        kind: see OpenTelemetry.
    """
    with _tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=_named(attributes),
        record_exception=False,  # messages and tracebacks may hold what is nobody else's business
        set_status_on_exception=False,
    ) as opened:
        try:
            yield opened
        except BaseException as error:
            failed(opened, type(error).__qualname__)
            raise


def failed(opened: Span, error_type: str) -> None:
    """Mark a span as one of something that failed."""
    opened.set_attribute("error.type", error_type)
    opened.set_status(StatusCode.ERROR)


def _named(attributes: Attributes) -> dict[str, str | int]:
    return {f"quantmill.{name}": value for name, value in attributes.items()}


# Of FastAPI, which makes the span of a request: its other signals are not used here.
REQUEST_SPANS: TelemetryConfig = {
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
    "exclude": lambda scope: str(scope.get("path", "")).startswith(_UNTRACED),
}


@contextmanager
def request_span(request_id: str, headers: Mapping[str, str], query: bytes) -> Iterator[None]:
    """Around what serves a request, within FastAPI's span of it; without one, in the context that the client sent."""
    current = trace.get_current_span()
    if current.is_recording():
        current.set_attributes(_named({"request_id": request_id}))
        if query:
            current.set_attribute("url.query", "REDACTED")  # a token of an event stream lets in whoever reads it
        yield
        return
    if current.get_span_context().is_valid or "traceparent" not in headers:
        yield
        return
    with trace.use_span(trace.get_current_span(_W3C.extract(headers, context=Context()))):
        yield


@contextmanager
def exporting(process: str) -> Iterator[None]:
    """Record spans and send them to the collector that the environment names, if it does, while the block runs.

    Sending is done by a thread of its own, from a queue of bounded length: a collector that is away costs the spans
    alone. The thread begins here: open it in the process that records, after whatever that process forks.

    Args:
        process: what the spans come from, unless OTEL_SERVICE_NAME says so: ``quantmill-PROCESS``.
    """
    provider = _provider(f"quantmill-{process}")
    forget_variables(_SECRETS)
    if provider is None:
        yield
        return
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        flushing = Thread(target=provider.shutdown, name="flush-spans", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        if flushing.is_alive():
            log.warning("tracing.not_flushed: the collector did not take the last spans in %g s", _FLUSH_SECONDS)


def _provider(service_name: str) -> TracerProvider | None:
    endpoint = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if endpoint is None or disabled or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        log.warning("tracing.off: %s is not supported; set %s to %s", protocol, _PROTOCOLS[1], _PROTOCOL)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        hint = "pip install 'quantmill[otel]'"
        log.warning("tracing.off: %s is set, but %s is not installed: %s", endpoint, error.name, hint)
        return None
    own: dict[str, Any] = {"service.version": VERSION}
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        own["service.name"] = service_name
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    log.info("tracing.started service=%s", provider.resource.attributes["service.name"])
    return provider
