"""Shared parts of resources: errors, and the status of models and datasets that ends as ready or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from service.contracts.command_errors import TransientError
from service.contracts.errors import FieldProblem, Problem, QuantmillError

_INPUT_FAULTS = (413, 422)
ResourceStatus = Literal["validating", "ready", "rejected"]


def with_pointer(problem: Problem, pointer: str) -> Problem:
    """The problem of a refused input; if it tells no place of its own, with the field that gave the bytes.

    Problems that are no fault of the input (a broken engine, a cancel) are left as they are.
    """
    if problem.errors or problem.status not in _INPUT_FAULTS:
        return problem
    place = FieldProblem(pointer=pointer, code=problem.code, message=problem.detail)
    return problem.model_copy(update={"errors": (place,)})


class ResourceError(QuantmillError):
    """Base: something about a resource, which a class keyword ``word`` names; ``listed`` tells where they are found."""

    word: ClassVar[str]
    listed: ClassVar[str]

    def __init_subclass__(cls, *, word: str | None = None, listed: str | None = None, **said: Any) -> None:
        super().__init_subclass__(**said)
        if word is not None:
            cls.word, cls.listed = word, listed or f"List all {word}s with GET /v1/{word}s."


class ResourceNotFoundError(ResourceError, status=404):
    """Base: the tenant has none that is called so.

    Args:
        resource_id: as the request has it.
        pointer: where, in the body.
        query: which parameter of the query; without either it is the one of the path.
        detail: what is said; default: that there is none.
        hint: likewise; default: where all of them are listed.
    """

    def __init__(
        self,
        resource_id: str,
        *,
        pointer: str | None = None,
        query: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(
            detail or f"{self.word.capitalize()} {resource_id!r} not found.",
            pointer=pointer,
            query=query,
            path_parameter=f"{self.word}_id" if pointer is None and query is None else None,
            hint=hint or self.listed,
        )


class ResourceInUseError(ResourceError, status=409):
    """Base: it cannot be deleted, for something that is there needs it.

    Args:
        named: what was to be deleted, by its name and version.
        needed_by: what needs it, each as a word with an id or a name; the first of them.
        count: how many there are.
    """

    def __init__(self, named: str, *, needed_by: Sequence[tuple[str, str]], count: int) -> None:
        users = ", ".join(f"{word} {name}" for word, name in needed_by)
        more = f" and {count - len(needed_by)} more" if count > len(needed_by) else ""
        super().__init__(
            f"The {self.word} {named} is in use by {users}{more}.",
            path_parameter=f"{self.word}_id",
            hint="Wait for jobs and validations to end, or cancel them; move or delete the aliases; change or delete "
            "the schedules.",
            needed_by=[{"kind": word, "name": name} for word, name in needed_by],
            count=count,
        )


class ResourceNotReadyError(ResourceError, TransientError, status=409):
    """Base: the validation has not ended yet."""

    def __init__(self, resource_id: str, *, pointer: str) -> None:
        super().__init__(
            f"The {self.word} {resource_id} is still being validated.",
            pointer=pointer,
            hint=f"Wait until its validation has ended with GET /v1/{self.word}s/{resource_id}?wait=25.",
        )


class ResourceRejectedError(ResourceError, status=422):
    """Base: the validation found it unusable."""

    def __init__(self, resource_id: str, *, pointer: str, reasons: list[Problem]) -> None:
        text = "; ".join(reason.detail for reason in reasons)
        problems = tuple(FieldProblem(pointer=pointer, code=reason.code, message=reason.detail) for reason in reasons)
        super().__init__(
            f"The {self.word} {resource_id} was rejected: {text}",
            errors=problems,
            hint=next((reason.hint for reason in reasons if reason.hint), f"Upload a valid {self.word}."),
            reasons=[reason.model_dump(mode="json", exclude_none=True) for reason in reasons],
        )
