"""What a tenant may use."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from service.contracts.base import Contract


class Quota(Contract):
    """Limits of a tenant; null means no limit. Limits of jobs and bytes apply to the whole installation; limits of
    requests apply to each API process separately.
    """

    model_config = ConfigDict(strict=True)

    stored_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Stored bytes of models, datasets, results and open uploads; identical files count once.",
    )
    upload_bytes: int | None = Field(default=None, ge=0, description="Maximum size of an uploaded file.")
    jobs_queued: int | None = Field(default=None, ge=0, description="Maximum number of queued quantize jobs.")
    jobs_running: int | None = Field(
        default=None, ge=0, description="Maximum number of running jobs; further jobs stay queued."
    )
    jobs_per_day: int | None = Field(
        default=None, ge=0, description="Maximum number of quantize jobs submitted within 24 hours."
    )
    cpu_seconds_per_day: float | None = Field(
        default=None, ge=0, description="CPU time of all jobs per UTC day; when it is used up, new jobs are refused."
    )
    requests_per_second: float | None = Field(
        default=None, ge=0.01, description="Mean rate; bursts of ten seconds' worth are allowed."
    )
    upload_bytes_per_second: int | None = Field(
        default=None, ge=1024, description="Rate of all uploads together; faster uploads are throttled."
    )
    open_streams: int | None = Field(default=None, ge=0, description="Maximum number of simultaneous event streams.")

    def over(self, default: Quota) -> Quota:
        """These limits where they were given, even as null; the default's elsewhere."""
        return default.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
