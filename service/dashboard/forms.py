"""What a form has sent, as text; fields that are empty count as left out."""

from __future__ import annotations

from fastapi import Request


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
