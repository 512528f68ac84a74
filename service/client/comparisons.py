"""Jobs side by side."""

from __future__ import annotations

from collections.abc import Iterable

from service.client.connection import Connection, Noun, id_of
from service.client.driving import Call
from service.client.steps import Steps
from service.comparison.schemas import Comparison


class ComparisonCalls(Connection):
    """Calls of ``/v1/compare``."""

    @Call
    def compare(self, jobs: Iterable[Noun | str], *, flips: int = 50) -> Steps[Comparison]:
        """Compare jobs that have succeeded; the first is what the others are held against.

        Args:
            jobs: 2 to 20 of them.
            flips: how many samples that changed sides are listed per pair.

        Raises:
            ConflictError: one has not ended.
        """
        params = {"job": [id_of(job) for job in jobs], "flips": flips}
        return Comparison.model_validate((yield from self._json("GET", "/v1/compare", params=params)))

    @Call
    def compare_csv(self, jobs: Iterable[Noun | str]) -> Steps[str]:
        """The same as a table of CSV, one row per job."""
        params = {"job": [id_of(job) for job in jobs]}
        return (yield from self._request("GET", "/v1/compare.csv", params=params)).text
