"""What models and datasets have in common: a status that ends in ready or rejected, with the reasons."""

from __future__ import annotations

from typing import Literal

from service.contracts.errors import FieldProblem, Problem, QuantmillError
from service.http import TransientError

NounStatus = Literal["validating", "ready", "rejected"]


class NounNotReadyError(TransientError):
    """Base: the validation has not ended yet."""

    status = 409

    def __init__(self, word: str, noun_id: str, pointer: str) -> None:
        super().__init__(
            f"The {word} {noun_id} is still being validated.",
            pointer=pointer,
            hint=f"Ask GET /v1/{word}s/{noun_id}?wait=25 until its status is no longer validating.",
        )


class NounRejectedError(QuantmillError):
    """Base: the validation found it unusable."""

    status = 422

    def __init__(self, word: str, noun_id: str, pointer: str, reasons: list[Problem]) -> None:
        text = "; ".join(reason.detail for reason in reasons)
        problems = tuple(FieldProblem(pointer=pointer, code=reason.code, message=reason.detail) for reason in reasons)
        super().__init__(
            f"The {word} {noun_id} was rejected: {text}",
            errors=problems,
            hint=next((reason.hint for reason in reasons if reason.hint), f"Upload a {word} that can be used."),
            reasons=[reason.model_dump(mode="json", exclude_none=True) for reason in reasons],
        )
