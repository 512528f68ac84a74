"""Metrics against the float model's output."""

from __future__ import annotations

from service.contracts.metrics import KL, Agreement, FidelityMetric
from worker.quantizer.evaluation.metrics.base import Array, Meter, Seen, UnfitError
from worker.quantizer.evaluation.metrics.distances import Agreement as Agreeing
from worker.quantizer.evaluation.metrics.distances import Distance, Divergence, decisions

_FIGURES = {"sqnr": "sqnr_db", "psnr": "psnr_db", "cosine": "cosine", "l2": "l2"}


class _Twins(Meter):
    """Hands on pairs of outputs of one shape."""

    _pairs = 0

    def update(self, seen: Seen) -> None:
        """Take in one batch."""
        reference, twin = seen.reference["output"], seen.outputs["output"]
        if reference.shape != twin.shape:
            self.undefined = f"the output is {list(twin.shape)}, the float model's {list(reference.shape)}"
            return
        self._take(reference, twin)
        self._pairs += 1

    def _take(self, reference: Array, twin: Array) -> None:
        raise NotImplementedError

    def value(self) -> float | None:
        """None if a batch could not be compared."""
        if self.undefined is not None or not self._pairs:
            return None
        found = self._figure()
        if found is None:
            self.undefined = "the outputs hold NaN or Inf, or are all zero"
        return found

    def _figure(self) -> float | None:
        raise NotImplementedError


class Nearness(_Twins):
    """SQNR, PSNR, cosine or L2."""

    def __init__(self, metric: FidelityMetric) -> None:
        self._property = _FIGURES[str(type(metric).model_fields["kind"].default)]
        self._distance = Distance()

    def _take(self, reference: Array, twin: Array) -> None:
        if reference.dtype.kind != "f":
            raise UnfitError("output", f"it holds {reference.dtype}, not floats")
        self._distance.update(reference, twin)

    def _figure(self) -> float | None:
        found: float | None = getattr(self._distance, self._property)
        return found


class RowDivergence(_Twins):
    """KL divergence."""

    def __init__(self, metric: KL) -> None:
        self._divergence = Divergence()

    def _take(self, reference: Array, twin: Array) -> None:
        if not self._divergence.update(reference, twin):
            raise UnfitError("output", f"it holds no class scores: {reference.dtype}{list(reference.shape)}")

    def _figure(self) -> float | None:
        return self._divergence.nats


class SameDecision(_Twins):
    """Share of equal decisions, in percent."""

    def __init__(self, metric: Agreement) -> None:
        self._agreement = Agreeing()

    def _take(self, reference: Array, twin: Array) -> None:
        if decisions(reference) is None:
            raise UnfitError("output", f"it decides nothing: {reference.dtype}{list(reference.shape)}")
        self._agreement.update(reference, twin)

    def _figure(self) -> float | None:
        return self._agreement.percent
