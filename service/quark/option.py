"""Handling of one of Quark's keys: honoured, no effect here, or refused. Registries are tuples of options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

from service.contracts.base import below, nearest_key
from service.quark.draft import BAD_VALUE, REFUSED, UNKNOWN, Given, QuarkDraft, QuarkStep

Verdict = Literal["honoured", "no effect here", "refused"]
Kind = Literal["a boolean", "an integer", "a number", "a string", "a list", "an object", "anything"]
Apply = Callable[[QuarkDraft, Given], None]
B: Kind = "a boolean"
I: Kind = "an integer"  # noqa: E741 - the letters of Quark's own option table
F: Kind = "a number"
S: Kind = "a string"
L: Kind = "a list"
D: Kind = "an object"
ANY: Kind = "anything"


@dataclass(frozen=True)
class Option:
    """A key of Quark's."""

    name: str
    kind: Kind
    default: Any  # in Quark; what says no more than the default is always accepted
    verdict: Verdict
    ours: str  # the place in our config, or ""
    why: str  # why it has no effect or is refused; for honoured ones, what differs
    apply: Apply  # does it; accounts for the key as honoured, noted or a problem


def honoured(name: str, kind: Kind, default: Any, ours: str, apply: Apply | None = None, why: str = "") -> Option:
    """An option that sets ``ours``, by ``apply`` or just as it is."""
    return Option(name, kind, default, "honoured", ours, why, apply or set_to(ours.replace(".", "/")))


def no_effect(name: str, kind: Kind, default: Any, why: str) -> Option:
    """An option that has nothing to act on here; what differs from the default is noted."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        draft.idle(given, default, f"has no effect here: {why}")

    return Option(name, kind, default, "no effect here", "", why, apply)


def refused(name: str, kind: Kind, default: Any, why: str, *, harmless: tuple[Any, ...] = ()) -> Option:
    """An option that cannot be translated, unless its value asks for what is done anyway."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        if given.value == default or given.value in harmless:
            draft.honour(given.pointer)
        else:
            refuse(draft, given, why)

    return Option(name, kind, default, "refused", "", why, apply)


def refuse(draft: QuarkDraft, given: Given, why: str) -> None:
    """Add the problem that ``given`` cannot be translated."""
    draft.problem(given.pointer, f"{given.name} cannot be translated: {why}")


def set_to(path: str) -> Apply:
    """Sets ``path`` of our config to the value as it is."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        draft.put(path, given.value, given)

    return apply


def switched(values: Mapping[str, Any], *, on: bool = True) -> Apply:
    """Sets these paths of our config where the value is ``on``."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        for path, value in values.items() if bool(given.value) is on else ():
            draft.set(path, copy(value), given.pointer)
        draft.honour(given.pointer)

    return apply


def done(draft: QuarkDraft, given: Given) -> None:
    """For keys that the translation reads where it begins or where it ends."""
    draft.honour(given.pointer)


def fits(kind: Kind, value: Any) -> bool:
    """True if a JSON value is of this kind."""
    if isinstance(value, bool):
        return kind in (B, ANY)
    types: dict[Kind, Any] = {B: bool, I: int, F: (int, float), S: str, L: list, D: dict, ANY: object}
    return isinstance(value, types[kind])


def admit(draft: QuarkDraft, option: Option, given: Given) -> None:
    """Enter a key into the draft, if its value is of the right kind; null says the same as leaving the key out."""
    if given.value is None:
        draft.honour(given.pointer)
    elif not fits(option.kind, given.value):
        draft.problem(given.pointer, f"{given.name} must be {option.kind}", BAD_VALUE)
    elif given.name in draft.given and draft.given[given.name].value != given.value:
        other = draft.given[given.name].pointer
        draft.problem(given.pointer, f"{given.name} has a different value at {other}", BAD_VALUE)
    elif given.name in draft.given:
        draft.honour(given.pointer)
    else:
        draft.given[given.name] = given


def unknown(draft: QuarkDraft, key: str, pointer: str, known: Iterable[str], instead: str = "") -> None:
    """Add the problem that ``key`` is none of ``known``, naming the nearest that is or what to do instead."""
    names = sorted(set(known))
    near = nearest_key(key, names)
    hint = instead or (f"did you mean {near!r}?" if near else f"known: {', '.join(names[:40])}")
    draft.problem(pointer, f"unknown key {key!r}; {hint}", UNKNOWN)


# Parameters of Quark's algorithms: keys of extra_options or of FastFinetune, and fields of the algorithm's class.

# (draft, value, its pointer) -> our value.
Convert = Callable[[QuarkDraft, Any, str], Any]


class BadValueError(ValueError):
    """A value that cannot be converted; says what it must be."""


@dataclass(frozen=True)
class Setting:
    """A parameter of an algorithm of Quark's."""

    option: str  # its key in extra_options or in FastFinetune
    field: str  # its key in the JSON of the algorithm's class
    kind: Kind
    default: Any  # in Quark; what says no more than the default is always accepted
    verdict: Verdict  # what becomes of it
    ours: str = ""  # the key of our algorithm that it sets, or ""
    why: str = ""  # why it has no effect or is refused; for honoured ones, what differs
    convert: Convert | None = None  # makes our value of Quark's
    method: str = ""  # the algorithm of ours that alone heeds it; "" for all

    def apply(self, draft: QuarkDraft, method: str, name: str, value: Any, pointer: str) -> None:
        """Have ``value``, given under ``name``, change the step of ``method``; accounts for ``pointer``."""
        if value is None:
            draft.honour(pointer)
        elif not fits(self.kind, value):
            draft.problem(pointer, f"{name} must be {self.kind}", BAD_VALUE)
        elif self.method not in ("", method):
            draft.idle(
                Given(name, value, pointer), self.default, f"has no effect here: it applies to {self.method} only"
            )
        elif self.verdict == "no effect here":
            draft.idle(Given(name, value, pointer), self.default, f"has no effect here: {self.why}")
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


def setting(option: str, field: str, kind: Kind, default: Any, ours: str, why: str = "", **more: Any) -> Setting:
    """A parameter that sets ``ours``."""
    return Setting(option, field, kind, default, "honoured", ours, why, **more)


def idle_setting(option: str, field: str, kind: Kind, default: Any, why: str) -> Setting:
    """A parameter that has nothing to act on here."""
    return Setting(option, field, kind, default, "no effect here", "", why)


def refused_setting(option: str, field: str, kind: Kind, default: Any, why: str) -> Setting:
    """A parameter that cannot be translated."""
    return Setting(option, field, kind, default, "refused", "", why)


def choice(allowed: Collection[str], told: str) -> Convert:
    """Takes one of ``allowed`` as it is; ``told`` says that it must be one."""

    def convert(draft: QuarkDraft, value: str, pointer: str) -> str:
        if value not in allowed:
            raise BadValueError(told)
        return value

    return convert


def read_class(draft: QuarkDraft, method: str, settings: Iterable[Setting], entry: dict[str, Any], at: str) -> None:
    """The fields of an algorithm's class, as its ``to_dict`` writes them."""
    fields = {setting.field: setting for setting in settings}
    for key, value in entry.items():
        if key in fields:
            fields[key].apply(draft, method, key, value, below(at, key))
        elif key != "name":
            unknown(draft, key, below(at, key), ("name", *fields))
