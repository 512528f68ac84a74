"""Jobs that are there: asked for once more, called otherwise, read as text, forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.client.connection import Connection, Noun, id_of
from service.client.driving import Call
from service.client.steps import Steps
from service.jobs.schemas import JobOut


class RecordCalls(Connection):
    """Calls of ``/v1/jobs/ID`` that change or repeat a job."""

    @Call
    def retry(self, job: Noun | str, *, idempotency_key: str | None = None) -> Steps[JobOut]:
        """Submit what a job that has ended was asked for, with its config as it was resolved then: a new job.

        Raises:
            ConflictError: it has not ended.
        """
        return JobOut.model_validate((yield from self._create(f"/v1/jobs/{id_of(job)}/retry", {}, idempotency_key)))

    @Call
    def clone(
        self, job: Noun | str, changes: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> Steps[JobOut]:
        """Submit what a job was asked for with changes: a new job.

        Args:
            job: the job, or its id.
            changes: JSON merge patch of its request; None takes a field away, another preset begins from that preset.
            idempotency_key: as for ``submit``.

        Raises:
            ConfigRefusedError: the config is not valid with these changes; names the fields.
        """
        path = f"/v1/jobs/{id_of(job)}/clone"
        return JobOut.model_validate((yield from self._create(path, changes, idempotency_key)))

    @Call
    def rename(self, job: Noun | str, changes: Mapping[str, Any]) -> Steps[JobOut]:
        """Change ``name`` and ``labels``, whatever the job's state; what is left out stays, None takes away."""
        return JobOut.model_validate((yield from self._json("PATCH", f"/v1/jobs/{id_of(job)}", json=dict(changes))))

    @Call
    def delete_job(self, job: Noun | str) -> Steps[None]:
        """Forget a job that has ended, with its log, report and artifacts.

        Raises:
            ConflictError: it has not ended.
        """
        yield from self._request("DELETE", f"/v1/jobs/{id_of(job)}")

    @Call
    def logs(self, job: Noun | str) -> Steps[str]:
        """The job's log as text, one line per entry."""
        path, texts = f"/v1/jobs/{id_of(job)}/logs", []
        while True:
            answer = yield from self._request("GET", path)
            texts.append(answer.text)
            following = answer.links.get("next")
            if following is None:
                return "".join(texts)
            path = following["url"]
