"""Metrics against the float model's output."""

from __future__ import annotations

from service.contracts.metrics import FidelityMetric
from worker.quantizer.evaluation.certainty.contributions import DenseSums
from worker.quantizer.evaluation.metrics.base import Array, Meter, Seen, UnfitError
from worker.quantizer.evaluation.metrics.distances import (
    Agreement,
    Distance,
    Divergence,
    cosine_of,
    l2_of,
    power_sums,
    psnr_of,
    sqnr_of,
)

# By kind: what measures, and its property that is the value.
_FIGURES: dict[str, tuple[type[Distance | Divergence | Agreement], str]] = {
    "sqnr": (Distance, "sqnr_db"),
    "psnr": (Distance, "psnr_db"),
    "cosine": (Distance, "cosine"),
    "l2": (Distance, "l2"),
    "kl": (Divergence, "nats"),
    "agreement": (Agreement, "percent"),
}
# The same from power sums.
_OF_SUMS = {"sqnr_db": sqnr_of, "cosine": cosine_of, "l2": l2_of}
_UNFIT = {
    Distance: "its values are not floats",
    Divergence: "it holds no class scores",
    Agreement: "it decides nothing",
}


class Nearness(Meter):
    """Compares pairs of outputs of one shape."""

    def __init__(self, metric: FidelityMetric) -> None:
        made, self._property = _FIGURES[str(type(metric).model_fields["kind"].default)]
        self._measure = made()
        self._powers = DenseSums(self._of_powers)
        self._pairs = 0

    def update(self, seen: Seen) -> None:
        """Take in one batch."""
        reference, twin = seen.reference["output"], seen.outputs["output"]
        if reference.shape != twin.shape:
            self.undefined = f"the output is {list(twin.shape)}, the float model's {list(reference.shape)}"
            return
        if isinstance(self._measure, Distance):
            fits = self._measure.update(reference, twin)
            if fits:
                self._powers.add(power_sums(reference, twin, seen.samples), samples=seen.samples)
        else:
            fits = self._measure.update(reference, twin, seen.samples)
        if not fits:
            raise UnfitError("output", f"{_UNFIT[type(self._measure)]}: {reference.dtype}{list(reference.shape)}")
        self._pairs += 1

    @property
    def contributions(self) -> DenseSums:
        """Power sums, divergences or equal decisions by sample."""
        if isinstance(self._measure, Distance):
            return self._powers
        return self._measure.hits if isinstance(self._measure, Agreement) else self._measure.sums

    def _of_powers(self, sums: Array) -> Array:
        if isinstance(self._measure, Distance) and self._property == "psnr_db":
            return psnr_of(sums, self._measure.peak)
        return _OF_SUMS[self._property](sums)

    def value(self) -> float | None:
        """None if a batch could not be compared."""
        if self.undefined is not None or not self._pairs:
            return None
        found: float | None = getattr(self._measure, self._property)
        if found is None:
            self.undefined = "the outputs hold NaN or Inf, or are all zero"
        return found
