"""The form of a page as a browser without scripts would send it."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

_FIELD = re.compile(r"<input\b([^>]*)>|<(textarea|select)\b([^>]*)>(.*?)</\2>", re.DOTALL)
_HINT = re.compile(r'<\w+\b[^>]*\bid="h-([^"]*)"[^>]*>((?:(?!\bid="h-).)*?)</p>', re.DOTALL)


def attributes(text: str) -> dict[str, str]:
    """Of a tag; names that stand alone are empty. Pages write no bare angle within a value."""
    return {name: unescape(value) for name, value in re.findall(r'([\w:-]+)(?:="([^"]*)")?', text)}


def value_in(kind: str, given: dict[str, str], inside: str) -> str | None:
    """What a field sends; None: nothing."""
    if kind == "textarea":
        return unescape(inside).removeprefix("\n")
    if kind == "select":
        options = [attributes(one) for one in re.findall(r"<option\b([^>]*)>", inside)]
        return next((one["value"] for one in options if "selected" in one), options[0]["value"] if options else "")
    left_out = given.get("type") == "file" or (given.get("type") in ("checkbox", "radio") and "checked" not in given)
    return None if left_out else given.get("value", "")


class Form:
    """The form with an id, to be filled in: what stands in its fields, and what is told at them on the page."""

    def __init__(self, html: str, form_id: str = "new") -> None:
        self.described = {
            name: " ".join(unescape(re.sub(r"<[^>]*>", "", text)).split()) for name, text in _HINT.findall(html)
        }
        self.fields: dict[str, list[str]] = {}
        for tag, inside in re.findall(r"<form\b([^>]*)>(.*?)</form>", html, re.DOTALL):
            for plain, kind, given, text in _FIELD.findall(inside if attributes(tag).get("id") == form_id else ""):
                facts = attributes(plain or given)
                value = value_in(kind, facts, text)
                if facts.get("name") and value is not None:
                    self.fields.setdefault(facts["name"], []).append(value)

    def __getitem__(self, name: str) -> str:
        return self.fields[name][0]

    def with_fields(self, fields: dict[str, Any]) -> dict[str, list[str]]:
        """What is sent with these fields filled in."""
        changed = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
        return {**self.fields, **changed}
