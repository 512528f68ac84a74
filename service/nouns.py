"""What models and datasets have in common: a status that ends in ready or rejected, with the reasons."""

from __future__ import annotations

from typing import Literal

from service.contracts.errors import FieldProblem, Problem, QuantmillError
from service.contracts.http_errors import TransientError

_INPUT_FAULTS = (413, 422)
NounStatus = Literal["validating", "ready", "rejected"]


def with_pointer(problem: Problem, pointer: str) -> Problem:
    """The problem of a refused input; if it tells no place of its own, with the field of the noun that gave the bytes.

    Problems that are no fault of the input (a broken engine, a cancel) are left as they are.
    """
    if problem.errors or problem.status not in _INPUT_FAULTS:
        return problem
    place = FieldProblem(pointer=pointer, code=problem.code, message=problem.detail)
    return problem.model_copy(update={"errors": (place,)})


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
