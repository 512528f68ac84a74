"""Jobs, quantizations and evaluations: submitted, watched, repeated, canceled, forgotten, and what they report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from service.client.connection import Resource, as_parameters, id_of, with_config
from service.client.driving import Call, Each
from service.client.errors import JobFailedError, JobNotSucceededError
from service.client.following import Follower, log_of_job
from service.client.options import EvaluationRequest, JobFilters, QuantizationRequest, WaitKeywords
from service.client.resources import ResourceCalls
from service.client.steps import Items, Steps, heard
from service.contracts.devices import DeviceChoice
from service.contracts.documents import Config, config_document
from service.contracts.errors import InvalidRequestError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Report
from service.jobs.schemas import TERMINAL, EventOut, JobListed, JobOut, JobValidated
from service.pagination import Page
from service.reports.formats import FORMATS, FormatName


class JobCalls(ResourceCalls):
    """Calls of ``/v1/jobs`` and ``/v1/evaluations``."""

    @Call
    def retry(self, job: Resource | str, *, idempotency_key: str | None = None) -> Steps[JobOut]:
        """Submit what a job that has ended was asked for, with its config as it was resolved then: a new job.

        Raises:
            ConflictError: it has not ended.
        """
        return JobOut.model_validate((yield from self._create(f"/v1/jobs/{id_of(job)}/retry", {}, idempotency_key)))

    @Call
    def clone(
        self, job: Resource | str, changes: Mapping[str, Any], *, idempotency_key: str | None = None
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
        return JobOut.model_validate((yield from self._create(path, with_config(changes), idempotency_key)))

    @Call
    def rename(self, job: Resource | str, changes: Mapping[str, Any]) -> Steps[JobOut]:
        """Change ``name`` and ``labels``, whatever the job's state; what is left out stays, None takes away."""
        return JobOut.model_validate((yield from self._json("PATCH", f"/v1/jobs/{id_of(job)}", json=dict(changes))))

    @Call
    def delete_job(self, job: Resource | str) -> Steps[None]:
        """Forget a job that has ended, with its log, report and artifacts.

        Raises:
            ConflictError: it has not ended.
        """
        yield from self._request("DELETE", f"/v1/jobs/{id_of(job)}")

    @Call
    def logs(self, job: Resource | str) -> Steps[str]:
        """The job's log as text, one line per entry."""
        path, texts = f"/v1/jobs/{id_of(job)}/logs", []
        while True:
            answer = yield from self._request("GET", path)
            texts.append(answer.text)
            following = answer.links.get("next")
            if following is None:
                return "".join(texts)
            path = following["url"]

    @Call
    def submit_evaluation(self, **request: Unpack[EvaluationRequest]) -> Steps[JobOut]:
        """Have a model measured, without quantizing anything. What is still being validated is waited for.

        Args:
            model: the model, quantized or not, or the id of a ready one.
            evaluation: the data, or the id of a ready dataset.
            reference: a model to hold it against.
            spec: metrics and gate, as under ``evaluation`` of a config; None: top1 and top5, and no gate.
            name: for people.
            labels: to find the job by.
            priority: -100 to 100; of the jobs that wait, those with the highest number start first.
            idempotency_key: default: a fresh one, so that only this call's own retries are the same request.

        Raises:
            RejectedError: a model or the dataset was rejected.
            ConfigRefusedError: the specification is not valid, or compares with a reference that is not there.
            QuotaExceededError: the tenant has as many jobs as it may.
        """
        ids = yield from self._ready_ids(
            {
                "model_id": request["model"],
                "reference_model_id": request.get("reference"),
                "evaluation_dataset_id": request["evaluation"],
            }
        )
        spec = request.get("spec")
        body = {
            **ids,
            "evaluation": spec.model_dump(mode="json") if isinstance(spec, EvaluationSpec) else dict(spec or {}),
            "name": request.get("name"),
            "labels": dict(request.get("labels") or {}),
            "priority": request.get("priority", 0),
        }
        return JobOut.model_validate((yield from self._create("/v1/evaluations", body, request.get("idempotency_key"))))

    @Call
    def evaluation_report(self, job: Resource | str) -> Steps[EvaluationReport]:
        """What an evaluation that has succeeded has found."""
        return (yield from self._get(EvaluationReport, f"/v1/jobs/{id_of(job)}/report"))

    @Call
    def submit(self, **request: Unpack[QuantizationRequest]) -> Steps[JobOut]:
        """Submit a quantization. What is still being validated is waited for.

        Args:
            model: the model, or the id of a ready one.
            calibration: a dataset that fits it, or the id of a ready one; None: random data, if the config has it.
            evaluation: another, to measure accuracy on.
            config: a preset's name, a dict as sparse as can be, a QuantizationConfig, or the path of a config file.
            preset: instead of a config, the name of a preset.
            name: for people.
            labels: to find the job by.
            priority: -100 to 100; of the jobs that wait, those with the highest number start first.
            device: cpu, gpu, or auto: a GPU if the config asks for one.
            ranges_from: a succeeded job of the same graph, whose calibrated ranges are taken over.
            reuse: take a job that would give the same, where there is one; ``reused_from`` of the answer tells.
            hand_over: where results go once it has succeeded, see ``hand_over``.
            idempotency_key: default: a fresh one, so that only this call's own retries are the same request.

        Raises:
            RejectedError: the model or a dataset was rejected.
            ConfigRefusedError: the config is not valid; names the fields.
            QuotaExceededError: the tenant has as many jobs as it may.
        """
        config, preset, source = request.get("config"), request.get("preset"), request.get("ranges_from")
        if preset is not None and config is not None:
            raise InvalidRequestError("preset and config exclude each other.", hint="A config may name its preset.")
        ids = yield from self._ready_ids(
            {
                "model_id": request["model"],
                "calibration_dataset_id": request.get("calibration"),
                "evaluation_dataset_id": request.get("evaluation"),
            }
        )
        hand_over = [dict(target) for target in request.get("hand_over", ())]
        body = {
            **ids,
            "config": config_document(config if preset is None else {"preset": preset}),
            "name": request.get("name"),
            "labels": dict(request.get("labels") or {}),
            "ranges_from": None if source is None else id_of(source),
            "priority": request.get("priority", 0),
            "device": request.get("device", "auto"),
            "reuse": request.get("reuse", False),
            **({"hand_over": hand_over} if hand_over else {}),
        }
        return JobOut.model_validate((yield from self._create("/v1/jobs", body, request.get("idempotency_key"))))

    @Call
    def validate(
        self,
        config: Config | None = None,
        *,
        model: Resource | str | None = None,
        calibration: Resource | str | None = None,
        evaluation: Resource | str | None = None,
        device: DeviceChoice = "auto",
        priority: int = 0,
    ) -> Steps[JobValidated]:
        """What a job would be, without submitting it: the resolved config, warnings, where it would run, what it takes.

        Raises:
            ConfigRefusedError: the config is not valid; names the fields.
        """
        given = {"model_id": model, "calibration_dataset_id": calibration, "evaluation_dataset_id": evaluation}
        body: dict[str, Any] = {name: id_of(resource) for name, resource in given.items() if resource is not None}
        body |= {"config": config_document(config), "device": device, "priority": priority}
        found = yield from self._json("POST", "/v1/jobs:validate", json=body, repeatable=True)
        return JobValidated.model_validate(found)

    @Each
    def jobs(self, **filters: Unpack[JobFilters]) -> Items[JobListed, None]:
        """Jobs, newest first, without their configs (``job`` gives those), read page by page as they are wanted.

        Args:
            kind: only quantizations, or only evaluations; None: both.
            state: only those in this state, as it is shown.
            model: only those of this model.
            labels: only those with all of these.
            name: only those of this name.
            search: only those with this in their name, in any case.
            preset: only those of this preset.
            verdict: only those whose report has this verdict.
            created_after: only later ones.
            created_before: only earlier ones.
            limit: at most so many.
        """
        params: dict[str, object] = {**filters}
        model, labels, limit = filters.get("model"), filters.get("labels") or {}, filters.get("limit")
        for name in ("model", "labels", "limit"):
            params.pop(name, None)
        params["model_id"] = None if model is None else id_of(model)
        params |= {f"label.{name}": value for name, value in labels.items()}
        yield from self._all("/v1/jobs", JobListed, params, limit)

    @Call
    def jobs_page(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        search: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Steps[Page[JobListed]]:
        """One page of the jobs, as the service gives it.

        Args:
            kind: only quantize, or only evaluate jobs; None: both.
            state: only those in this state, as it is shown.
            search: only those with this in their name, in any case.
            labels: only those with all of these.
            limit: jobs per page, at most 200.
            cursor: ``next_cursor`` of the page before.
        """
        params = as_parameters({"kind": kind, "state": state, "search": search, "limit": limit, "cursor": cursor})
        params |= {f"label.{name}": value for name, value in (labels or {}).items()}
        return (yield from self._get(Page[JobListed], "/v1/jobs", params=params))

    @Call
    def job(self, job: Resource | str) -> Steps[JobOut]:
        """The job as it is now."""
        return (yield from self._get(JobOut, f"/v1/jobs/{id_of(job)}"))

    @Each
    def follow(self, job: Resource | str, *, after: int = 0) -> Items[EventOut, None]:
        """The job's events, each once and in order, as they happen; ends when the job has ended.

        A stream that breaks off is taken up again after the last event; where streams are cut, they are polled for.
        Of figures (type metric) those of the last attempt hold: ``latest_metrics`` of ``service.jobs.events``
        picks them.

        Args:
            job: the job, or its id.
            after: only events with higher numbers.
        """
        yield from Follower(self, log_of_job(id_of(job)), after).events()

    @Call
    def wait(self, job: Resource | str, **options: Unpack[WaitKeywords]) -> Steps[JobOut]:
        """Wait until the job has ended, however it did.

        Args:
            job: the job, or its id.
            on_event: told each event of the job meanwhile, from the first one on.
            timeout_seconds: how long; None: as long as it takes.

        Raises:
            WaitTimeoutError: it takes longer than that.
        """
        return (yield from self._ended(id_of(job), options))

    @Call
    def wait_succeeded(self, job: Resource | str, **options: Unpack[WaitKeywords]) -> Steps[JobOut]:
        """Wait until the job has succeeded; arguments as for ``wait``.

        Raises:
            JobFailedError: it failed; carries its error.
            JobNotSucceededError: it was canceled.
            WaitTimeoutError: it takes longer than that.
        """
        ended = yield from self._ended(id_of(job), options)
        if ended.error is not None:
            raise JobFailedError(ended.error)
        if ended.state != "succeeded":
            raise JobNotSucceededError(f"The job {ended.id} was canceled.", hint="Submit it again.")
        return ended

    @Call
    def report(self, job: Resource | str) -> Steps[Report]:
        """The report of a succeeded quantization.

        Raises:
            InvalidRequestError: the job is an evaluation.
        """
        found = yield from self._json("GET", f"/v1/jobs/{id_of(job)}/report")
        if found.get("kind") == "evaluation":
            raise InvalidRequestError(f"The job {id_of(job)} is an evaluation.", hint="Ask for its evaluation_report.")
        return Report.model_validate(found)

    @Call
    def report_file(self, job: Resource | str, form: FormatName) -> Steps[bytes]:
        """The report of a succeeded job as the service renders it: HTML, Markdown, JUnit XML, or CSV of its layers."""
        if form not in FORMATS:
            raise InvalidRequestError(f"{form!r} is no format of a report.", hint=f"Formats: {', '.join(FORMATS)}.")
        return (yield from self._request("GET", f"/v1/jobs/{id_of(job)}/{FORMATS[form].path}")).content

    @Call
    def cancel(self, job: Resource | str) -> Steps[JobOut]:
        """Cancel the job; one that has ended stays as it is."""
        return JobOut.model_validate((yield from self._json("POST", f"/v1/jobs/{id_of(job)}/cancel", repeatable=True)))

    def _ended(self, job_id: str, options: WaitKeywords) -> Steps[JobOut]:
        path, on_event, timeout_seconds = f"/v1/jobs/{job_id}", options.get("on_event"), options.get("timeout_seconds")
        if on_event is None:
            return (yield from self._get_once(JobOut, path, lambda seen: seen.state in TERMINAL, timeout_seconds))
        yield from heard(Follower(self, log_of_job(job_id), 0, timeout_seconds).events(), on_event)
        return (yield from self._get(JobOut, path))
