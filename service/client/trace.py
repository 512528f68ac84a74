"""The trace that requests of a client belong to."""

from __future__ import annotations

import os
import re
import sys

# As tools hand a trace on to the programs that they start.
VARIABLE = "TRACEPARENT"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_headers() -> dict[str, str]:
    """W3C headers of the caller's OpenTelemetry context; without one, of the variable TRACEPARENT; empty: of none.

    OpenTelemetry is not loaded for that: only a program that has loaded it may have a context.
    """
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    given = os.environ.get(VARIABLE, "")
    if not headers and _TRACEPARENT.fullmatch(given):
        headers["traceparent"] = given
    return headers
