"""Spans of the stages of a runner, which has no network and no clock that is believed: made as its lines arrive."""

from __future__ import annotations

from opentelemetry.trace import Span

from service.tracing import begin_span

# Of one attempt; whatever a runner tells, the collector gets no more.
MOST_SPANS = 200
_MOST_CHARS = 64


class StageSpans:
    """One span after the other, each from the first line of its stage to the first line of another one."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._span: Span | None = None
        self._begun = 0

    def enter(self, stage: str) -> None:
        """The runner works at this stage now, below the current span."""
        if stage == self._stage:
            return
        self.end()
        self._stage = stage
        if self._begun < MOST_SPANS:
            self._begun += 1
            self._span = begin_span(f"stage {stage[:_MOST_CHARS]}")

    def end(self) -> None:
        """The stage is over."""
        if self._span is not None:
            self._span.end()
        self._stage = self._span = None
