"""What a form has sent, as text; fields that are empty count as left out."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.contracts.validation import field_problems
from service.deps import AppState

_Record = TypeVar("_Record", bound=BaseModel)


class Form:
    """The fields of a form.

    Args:
        fields: name and value, in their order.
    """

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str | None:
        """The value of a field without blanks around it; None: it is empty or not there."""
        return next((value.strip() for key, value in self._fields if key == name and value.strip()), None)

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return [value.strip() for key, value in self._fields if key == name and value.strip()]

    def ticked(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name) is not None


async def sent(request: Request) -> Form:
    """The form that the request carries, without its files."""
    form = await request.form()
    return Form([(key, value) for key, value in form.multi_items() if isinstance(value, str)])


async def checked(app: AppState, model: type[_Record], document: dict[str, Any]) -> _Record:
    """What a form asks for as the API takes it, validated beside the event loop.

    Raises:
        ValidationError: it is none.
    """
    return await app.checks.run(lambda: model.model_validate(document))


def field_errors(error: ValidationError, model: type[BaseModel]) -> dict[str, str]:
    """What is said at which field of a form whose fields are those of a record."""
    return {one.pointer.split("/")[1]: one.message for one in field_problems(error, model)}
