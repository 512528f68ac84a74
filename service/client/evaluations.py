"""Evaluations: submitted, and what they have found; else they are jobs."""

from __future__ import annotations

from typing import Unpack

from service.client.connection import Noun, id_of
from service.client.driving import Call
from service.client.options import EvaluationRequest
from service.client.steps import Steps
from service.client.validation import ValidationCalls
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_report import EvaluationReport
from service.jobs.schemas import JobOut


class EvaluationCalls(ValidationCalls):
    """Calls of ``/v1/evaluations``."""

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
        answer = yield from self._create("/v1/evaluations", body, request.get("idempotency_key"))
        return JobOut.model_validate(answer)

    @Call
    def evaluation_report(self, job: Noun | str) -> Steps[EvaluationReport]:
        """What an evaluation that has succeeded has found."""
        return EvaluationReport.model_validate((yield from self._json("GET", f"/v1/jobs/{id_of(job)}/report")))
