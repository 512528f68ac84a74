"""What a tenant may use."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from service.contracts.base import Contract


class Quota(Contract):
    """Limits of one tenant; null: none. Those of jobs and bytes are counted over the whole installation, those of
    requests by each API process for itself.
    """

    model_config = ConfigDict(strict=True)

    stored_bytes: int | None = Field(
        default=None, ge=0, description="Models, data, results and open uploads, equal files counted once."
    )
    upload_bytes: int | None = Field(default=None, ge=0, description="Largest file.")
    jobs_queued: int | None = Field(default=None, ge=0, description="Quantize jobs that wait for their turn.")
    jobs_running: int | None = Field(default=None, ge=0, description="Jobs that run at once; others wait.")
    jobs_per_day: int | None = Field(default=None, ge=0, description="Quantize jobs submitted within 24 hours.")
    cpu_seconds_per_day: float | None = Field(
        default=None, ge=0, description="CPU time of all jobs in a day of UTC; beyond it none is accepted."
    )
    requests_per_second: float | None = Field(
        default=None, ge=0.01, description="Mean rate; bursts of ten seconds' worth are allowed."
    )
    upload_bytes_per_second: int | None = Field(
        default=None, ge=1024, description="Pace of all uploads together: faster ones are slowed down."
    )
    open_streams: int | None = Field(default=None, ge=0, description="Event streams at once.")

    def over(self, default: Quota) -> Quota:
        """These limits where they were given, even as null; the default's elsewhere."""
        return default.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
