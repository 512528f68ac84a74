"""A collector of traces on loopback: it takes OTLP over HTTP, as OpenTelemetry's does, and shows a trace as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """One span as it was sent."""

    trace_id: str
    span_id: str
    parent_id: str  # "" of a root
    name: str
    service: str  # name of the process that has recorded it
    attributes: dict[str, Any]
    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9


class Collector:
    """Its address, and the spans that it was sent."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: the tests look at the spans."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def of(self, trace_id: str) -> list[Seen]:
        """The spans of a trace, in the order of their beginnings."""
        return sorted((seen for seen in self.spans if seen.trace_id == trace_id), key=lambda seen: seen.began_ns)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector for the length of the block."""
    collector = Collector()
    thread = Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()


def tree(spans: Sequence[Seen]) -> str:
    """A trace in lines: each span below its parent; those whose parents are elsewhere stand at the left."""
    known = {seen.span_id for seen in spans}
    began = min(seen.began_ns for seen in spans)
    lines: list[str] = []

    def show(seen: Seen, depth: int) -> None:
        at = (seen.began_ns - began) / 1e9
        lines.append(f"{at:8.3f} s {seen.seconds:8.3f} s  {'  ' * depth}{seen.name}  [{seen.service}]")
        for child in spans:
            if child.parent_id == seen.span_id:
                show(child, depth + 1)

    for seen in spans:
        if seen.parent_id not in known:
            show(seen, 0)
    return "\n".join(lines)


def _spans(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    for of_process in request.resource_spans:
        service = _attributes(of_process.resource.attributes)["service.name"]
        for scope in of_process.scope_spans:
            for span in scope.spans:
                yield Seen(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    service,
                    _attributes(span.attributes),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
