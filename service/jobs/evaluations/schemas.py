"""Requests for evaluations."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from service.contracts.bounds import require_bounded
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import check_no_function
from service.contracts.labels import Labels
from service.contracts.texts import Text
from service.idempotency.digests import RepeatableBody
from service.jobs.schemas import Priority, Reference

POINTER = "/evaluation"


class EvaluationCreate(RepeatableBody):
    """A model to measure, beside another one if that is given."""

    model_config = ConfigDict(extra="forbid")

    model_id: Reference = Field(description="The model that is measured, quantized or not.")
    reference_model_id: Reference | None = Field(
        default=None, description="The model that it is held against, such as the float model that it was made of."
    )
    evaluation_dataset_id: Reference
    evaluation: EvaluationSpec = Field(
        default_factory=EvaluationSpec,
        description="What is measured, and the gate. Conditions that compare need a reference_model_id.",
    )
    priority: Priority = 0
    name: Text | None = None
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("evaluation"), dict):
            require_bounded(data["evaluation"], pointer=POINTER)
        return data

    @model_validator(mode="after")
    def _no_function(self) -> EvaluationCreate:
        check_no_function(self.evaluation, pointer=POINTER)
        return self
