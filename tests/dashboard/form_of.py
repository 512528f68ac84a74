"""The form of a page as a browser without scripts would send it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class FormReader(HTMLParser):
    """Collects the fields of the form with an id, with what stands in them, and the text of every element with one."""

    def __init__(self, form_id: str) -> None:
        super().__init__()
        self.fields: list[tuple[str, str]] = []
        self.described: dict[str, str] = {}
        self._form_id, self._inside = form_id, False
        self._area: str | None = None
        self._select: str | None = None
        self._hint: str | None = None
        self._first: str | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "form":
            self._inside = given.get("id") == self._form_id
        if given.get("id", "").startswith("h-"):
            self._hint, self._text = given["id"][2:], ""
        if not self._inside:
            return
        name = given.get("name", "")
        if tag == "textarea":
            self._area, self._text = name, ""
        elif tag == "select":
            self._select, self._first = name, None
        elif tag == "option" and self._select is not None:
            if self._first is None:
                self._first = given["value"]
            if "selected" in given:
                self.fields.append((self._select, given["value"]))
                self._select = None
        elif tag == "input" and name and given.get("type") != "file" and _counts(given):
            self.fields.append((name, given.get("value", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area is not None:
            self.fields.append((self._area, self._text.removeprefix("\n")))
            self._area = None
        elif tag == "select":
            if self._select is not None:
                self.fields.append((self._select, self._first or ""))
            self._select = None
        elif tag == "p" and self._hint is not None:
            self.described[self._hint] = " ".join(self._text.split())
            self._hint = None
        elif tag == "form":
            self._inside = False

    def handle_data(self, data: str) -> None:
        self._text += data


def _counts(given: dict[str, str]) -> bool:
    return given.get("type") != "checkbox" or "checked" in given


class Form:
    """A form to be filled in.

    Args:
        html: the page.
        form_id: of the form.
    """

    def __init__(self, html: str, form_id: str = "new") -> None:
        reader = FormReader(form_id)
        reader.feed(html)
        self.described = reader.described
        self.fields: dict[str, list[str]] = {}
        for name, value in reader.fields:
            self.fields.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> str:
        return self.fields[name][0]

    def with_fields(self, fields: dict[str, Any]) -> dict[str, list[str]]:
        """What is sent with these fields filled in."""
        changed = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
        return {**self.fields, **changed}
