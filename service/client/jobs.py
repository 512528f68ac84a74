"""Jobs: submitted, watched, canceled, and what they report."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from service.client.connection import Connection, plain_config
from service.contracts.config import QuantizationConfig
from service.contracts.devices import DeviceChoice
from service.contracts.report import Report
from service.jobs.schemas import TERMINAL, EventOut, JobListed, JobOut
from service.pagination import Page
from service.reports.formats import FORMATS, FormatName
from service.transport import ApiError, JobNotSucceededError, Patience, raise_for_problem

# The service pings every 15 s: a stream that is silent for so long is dead.
STREAM_SILENCE_SECONDS = 45.0


class JobCalls(Connection):
    """Calls of ``/v1/jobs``."""

    def create_job(
        self,
        *,
        model_id: str,
        calibration_dataset_id: str | None = None,
        evaluation_dataset_id: str | None = None,
        config: QuantizationConfig | Mapping[str, Any] | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        ranges_from: str | None = None,
        priority: int = 0,
        device: DeviceChoice = "auto",
    ) -> JobOut:
        """Submit a quantization.

        Args:
            model_id: a ready model.
            calibration_dataset_id: a ready dataset that fits the model; None: random data, if the config has it.
            evaluation_dataset_id: another, to measure accuracy on.
            config: the recipe, resolved or as sparse as can be.
            name: for people.
            labels: to find the job by.
            idempotency_key: default: a fresh one, so that only this call's own retries are the same request.
            ranges_from: a succeeded job of the same graph, whose calibrated ranges are taken over.
            priority: -100 to 100; of the jobs that wait, those with the highest number start first.
            device: cpu, gpu, or auto: a GPU if the config asks for one.
        """
        body = {
            "model_id": model_id,
            "calibration_dataset_id": calibration_dataset_id,
            "evaluation_dataset_id": evaluation_dataset_id,
            "config": plain_config(config),
            "name": name,
            "labels": dict(labels or {}),
            "ranges_from": ranges_from,
            "priority": priority,
            "device": device,
        }
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return JobOut.model_validate(self._json("POST", "/v1/jobs", json=body, headers=headers))

    def jobs(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[JobListed]:
        """One page of the jobs, newest first, without their configs: ``job`` gives those.

        Args:
            state: only those in this state, as it is shown.
            limit: jobs per page, at most 200.
            cursor: ``next_cursor`` of the page before.
        """
        given = {"state": state, "limit": limit, "cursor": cursor}
        params = {name: value for name, value in given.items() if value is not None}
        return Page[JobListed].model_validate(self._json("GET", "/v1/jobs", params=params))

    def job(self, job_id: str) -> JobOut:
        """The job as it is now."""
        return JobOut.model_validate(self._json("GET", f"/v1/jobs/{job_id}"))

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventOut]:
        """The job's events, each once and in order, as they happen; ends when the job has ended.

        A stream that breaks off is taken up again after the last event. Of figures (type metric) those of the last
        attempt hold: ``latest_metrics`` of ``service.jobs.metric_events`` picks them.
        """
        patience = Patience(self._transport)
        while True:
            try:
                for name, data in self._stream_events(job_id, after):
                    patience.renew()
                    if name == "end":
                        return
                    event = EventOut.model_validate_json(data)
                    after = event.seq
                    yield event
            except (httpx.TransportError, ApiError) as error:
                patience.endure(error)

    def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> JobOut:
        """Wait until the job has ended, however it did.

        Raises:
            WaitTimeoutError: it takes longer than that.
        """
        path = f"/v1/jobs/{job_id}"

        def look(wait_seconds: float) -> JobOut:
            return JobOut.model_validate(self._json("GET", path, wait_seconds=wait_seconds))

        return self._wait(look, lambda seen: seen.state in TERMINAL, timeout_seconds, path)

    def wait_succeeded(self, job_id: str, *, timeout_seconds: float | None = None) -> JobOut:
        """Wait until the job has succeeded.

        Raises:
            ApiError: it failed; carries its error.
            JobNotSucceededError: it was canceled.
            WaitTimeoutError: it takes longer than that.
        """
        job = self.wait(job_id, timeout_seconds=timeout_seconds)
        if job.error is not None:
            raise ApiError(job.error)
        if job.state != "succeeded":
            raise JobNotSucceededError(f"The job {job_id} was canceled.", hint="Submit it again.")
        return job

    def report(self, job_id: str) -> Report:
        """The report of a succeeded job."""
        return Report.model_validate(self._json("GET", f"/v1/jobs/{job_id}/report"))

    def report_file(self, job_id: str, form: FormatName) -> bytes:
        """The report of a succeeded job as the service renders it: HTML, Markdown, JUnit XML, or CSV of its layers."""
        path = f"/v1/jobs/{job_id}/{FORMATS[form].path}"
        return self._transport.patiently(lambda: self._transport.send("GET", path)).content

    def cancel(self, job_id: str) -> JobOut:
        """Cancel the job; one that has ended stays as it is."""
        return JobOut.model_validate(self._json("POST", f"/v1/jobs/{job_id}/cancel"))

    def _stream_events(self, job_id: str, after: int) -> Iterator[tuple[str, str]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        url = f"/v1/jobs/{job_id}/events"
        with self._transport.stream(url, headers=headers, silence_seconds=STREAM_SILENCE_SECONDS) as response:
            raise_for_problem(response)
            name, data = "message", ""
            for line in response.iter_lines():
                key, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if key == "event":
                    name = value
                elif key == "data":
                    data = value
                elif not line and data:
                    yield name, data
                    name, data = "message", ""
        raise httpx.RemoteProtocolError("the event stream ended before the job")
