"""Parameters of Quark's algorithms: keys of extra_options or of FastFinetune, and fields of the algorithm's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, REFUSED, QuarkDraft, QuarkStep
from service.quark.option import Kind, Verdict, fits, unknown

# (draft, value, its pointer) -> our value.
Convert = Callable[[QuarkDraft, Any, str], Any]


class BadValueError(ValueError):
    """A value that cannot be converted; says what it must be."""


@dataclass(frozen=True)
class Setting:
    """A parameter of an algorithm of Quark's.

    Attributes:
        option: its key in extra_options or in FastFinetune.
        field: its key in the JSON of the algorithm's class.
        default: in Quark; what says no more than the default is always accepted.
        verdict: what becomes of it.
        ours: the key of our algorithm that it sets, or "".
        why: why it has no effect or is refused; for honoured ones, what differs.
        convert: makes our value of Quark's.
        method: the algorithm of ours that alone heeds it; "" for all.
    """

    option: str
    field: str
    kind: Kind
    default: Any
    verdict: Verdict
    ours: str = ""
    why: str = ""
    convert: Convert | None = None
    method: str = ""

    def apply(self, draft: QuarkDraft, method: str, name: str, value: Any, pointer: str) -> None:
        """Have ``value``, given under ``name``, change the step of ``method``; accounts for ``pointer``."""
        if value is None:
            draft.honour(pointer)
        elif not fits(self.kind, value):
            draft.problem(pointer, f"{name} must be {self.kind}", BAD_VALUE)
        elif self.method not in ("", method):
            self._idle(draft, name, value, pointer, f"it concerns {self.method} only")
        elif self.verdict == "no effect here":
            self._idle(draft, name, value, pointer, self.why)
        elif self.verdict == "honoured":
            self._set(draft, draft.steps[method], name, value, pointer)
        elif value == self.default:
            draft.honour(pointer)
        else:
            draft.problem(pointer, f"{name} cannot be translated: {self.why}", REFUSED)

    def _set(self, draft: QuarkDraft, step: QuarkStep, name: str, value: Any, pointer: str) -> None:
        try:
            step.settings[self.ours] = self.convert(draft, value, pointer) if self.convert else value
        except BadValueError as error:
            draft.problem(pointer, f"{name} {error}", BAD_VALUE)
            return
        step.origins[self.ours] = pointer
        draft.honour(pointer)

    def _idle(self, draft: QuarkDraft, name: str, value: Any, pointer: str, why: str) -> None:
        if value == self.default:
            draft.honour(pointer)
        else:
            draft.note(pointer, f"{name} has no effect here: {why}")


def read_class(draft: QuarkDraft, method: str, settings: Iterable[Setting], entry: dict[str, Any], at: str) -> None:
    """The fields of an algorithm's class, as its ``to_dict`` writes them."""
    fields = {setting.field: setting for setting in settings}
    for key, value in entry.items():
        if key in fields:
            fields[key].apply(draft, method, key, value, below(at, key))
        elif key != "name":
            unknown(draft, key, below(at, key), ("name", *fields))
