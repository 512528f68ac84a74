"""Validation of documents: what contradicts itself, and where every problem is.

A document within the bounds is validated in a fraction of a second whatever it says, and larger ones are refused after
a look at no more of them than that.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from service.contracts.base import below, nearest_key
from service.contracts.errors import FieldProblem
from service.contracts.validation_words import message_of


class Contradiction(NamedTuple):
    """Two settings of a config that cannot both hold."""

    pointer: str  # JSON pointer within the config of the one to change
    message: str  # what contradicts what, and what to do


# Selectors in include, in exclude, and overrides; each.
MOST_SELECTORS = 500
# Names within one selector, and characters of a name.
MOST_NAMES, MOST_NAME_CHARS = 1000, 4096
# Expressions in a config: compiling one may take half a millisecond.
MOST_REGEXES = 100
# Ranges by tensor.
MOST_RANGES = 10_000
# Values in a document beside its ranges, and keys of one object.
MOST_VALUES, MOST_KEYS = 20_000, 500
_RANGES = "tensor_ranges"

# Key in the context of a PydanticCustomError: pointer, from the validated field on, to the part of it that is wrong.
BELOW = "below"


def require_bounded(document: Mapping[str, Any], *, pointer: str = "") -> None:
    """Refuse a config that is too large to be looked into, in time that does not grow with it.

    Args:
        document: the config.
        pointer: of it, from the validated field on.

    Raises:
        PydanticCustomError: ``too-large``; says of what there is too much, and where.
    """
    values = regexes = 0
    todo: list[tuple[str, Any]] = [(pointer, document)]
    while todo:
        at, found = todo.pop()
        if isinstance(found, Mapping):
            wide = at == below(pointer, _RANGES)
            if len(found) > (MOST_RANGES if wide else MOST_KEYS):
                most = MOST_RANGES if wide else MOST_KEYS
                raise _too_large(at, f"{len(found)} keys; at most {most} are taken here")
            if wide:
                continue
            regexes += "regex" in found
            if any(isinstance(key, str) and len(key) > MOST_NAME_CHARS for key in found):
                raise _too_large(at, f"a key of more than {MOST_NAME_CHARS} characters")
            inside = [(below(at, key), value) for key, value in found.items()]
        elif isinstance(found, list | tuple):
            inside = [(below(at, place), value) for place, value in enumerate(found[: MOST_VALUES + 1])]
        else:
            continue
        values += len(inside)
        if values > MOST_VALUES:
            told = f"the config contains more than {MOST_VALUES} values; one regex can name many nodes"
            raise _too_large(at, told)
        if regexes > MOST_REGEXES:
            raise _too_large(at, f"the config contains more than {MOST_REGEXES} regular expressions; join some with |")
        todo += inside


def _too_large(at: str, told: str) -> PydanticCustomError:
    return PydanticCustomError("too-large", "{told}", {"told": told, BELOW: at})


# Of a document with many faults so many are told; so many of pydantic's, several of which may be one, are looked at.
MOST_TOLD, _MOST_LOOKED_AT = 20, 400
# Sections that a key may have been meant for.
_MOST_NESTED = 3


def field_problems(
    error: ValidationError, model: type[BaseModel], *, pointer: str = "", show_values: bool = True
) -> tuple[FieldProblem, ...]:
    """One FieldProblem per error of ``error``; ``pointer`` is put before each location.

    Without ``show_values`` no message quotes the input, which may be a secret.

    Where a value fits none of several forms, pydantic tells for each of them why not; here that is one problem.
    """
    problems: list[FieldProblem] = []
    items = error.errors(include_url=False, include_input=show_values)
    told = (item for item in items[:_MOST_LOOKED_AT] if not _only_by_other_errors(item))
    for item in _without_alternatives(list(told), model):
        place = _resolve(model, item["loc"])
        path, message = place.path, message_of(item)
        if item["type"] == "extra_forbidden" and place.path:
            names = {name for found in place.holders for name in found.model_fields}
            inner = list(_nested(str(place.path[-1]), place.holders))
            message = _unknown(place.path[-1], names, inner)
        elif item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            key, message = _tag_problem(item, [str(_tag(member)) for member in place.members])
            path = [*path, key]
        elif item["type"] == "model_attributes_type" and len(place.members) > 1:
            message = _with_form(message, item.get("input"), place.members)
        full = below(pointer, *path)
        full += item.get("ctx", {}).get(BELOW, "")
        problem = FieldProblem(pointer=full, code=item["type"], message=message)
        if len(problems) == MOST_TOLD:
            more = {"code": "more-problems", "message": "here and elsewhere are more problems than these"}
            return (*problems, problem.model_copy(update=more))
        if problem not in problems:
            problems.append(problem)
    return tuple(problems)


def _only_by_other_errors(item: ErrorDetails) -> bool:
    """A list that is too short only without the items that are wrong, which are told themselves."""
    given = item.get("input")
    return item["type"] == "too_short" and isinstance(given, list | tuple) and len(given) >= item["ctx"]["min_length"]


def _unknown(key: int | str, names: Iterable[str], inner: Sequence[str] = ()) -> str:
    """What is said of a key that is not there; ``inner``: where it is, in sections."""
    near = nearest_key(str(key), sorted(names))
    meant = " or ".join(map(repr, inner[:_MOST_NESTED] or ([near] if near else [])))
    told = f"did you mean {meant}?" if meant else f"valid keys: {', '.join(sorted(names))}"
    return f"unknown key {str(key)!r}; {told}"


def _nested(key: str, models: Iterable[type[BaseModel]], depth: int = 2) -> Iterator[str]:
    """Where sections of these models have a key of that name, such as evaluation.gate; not within lists."""
    for name, field in ((name, field) for model in models for name, field in model.model_fields.items()):
        sections = [one for one in _members(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
        if any(key in section.model_fields for section in sections):
            yield f"{name}.{key}"
        elif depth > 1:
            yield from (f"{name}.{found}" for found in _nested(key, sections, depth - 1))


def _members(annotation: Any) -> Iterator[Any]:
    """The annotation, or those of a union."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _without_alternatives(items: list[ErrorDetails], model: type[BaseModel]) -> Iterator[ErrorDetails]:
    """The errors, with one in place of all those that the members of a union without tag gave for one value."""
    groups: dict[tuple[int | str, ...], tuple[list[type[BaseModel]], list[ErrorDetails]]] = {}
    for item in items:
        union = _resolve(model, item["loc"]).union
        if union is None:
            groups[(*item["loc"], len(groups))] = ([], [item])
        else:
            groups.setdefault(item["loc"][: union.depth], (union.members, []))[1].append(item)
    for loc, (members, found) in groups.items():
        yield from _as_one(loc, members, found) if members else found


def _as_one(
    loc: tuple[int | str, ...], members: list[type[BaseModel]], items: list[ErrorDetails]
) -> Iterator[ErrorDetails]:
    """Errors of the one member whose keys are all there, if there is one; else one error that lists the forms."""
    depth = len(loc)
    lacking = {item["loc"][depth] for item in items if item["type"] == "missing" and len(item["loc"]) == depth + 2}
    meant = [member for member in members if member.__name__ not in lacking]
    if len(meant) == 1:
        yield from (item for item in items if item["loc"][depth] == meant[0].__name__)
        return
    forms = [", ".join(name for name, field in m.model_fields.items() if field.is_required()) for m in members]
    told = "forms: " + ", ".join(f"{{{form}}}" for form in forms)
    keys = {str(item["loc"][-1]): None for item in items if item["type"] == "extra_forbidden"}
    names = sorted({name for member in members for name in member.model_fields})
    unknown = [key for key in keys if key not in names]
    if len(unknown) == 1:
        told = f"{_unknown(unknown[0], names).partition('; valid')[0]} (accepted {told})"
        loc = (*loc, unknown[0])
    else:
        told = f"must have one of these {told}" + (f"; found {{{', '.join(keys)}}}" if keys else "")
    yield ErrorDetails(type="no_form_fits", loc=loc, msg=told, input=None)


class _Union(NamedTuple):
    """A union without tag within a location: where the location has the names of its members."""

    depth: int
    members: list[type[BaseModel]]


class _Place(NamedTuple):
    """A location: the models that hold its last part, those that it may be itself, the location as in the document, the
    first union without tag.
    """

    holders: list[type[BaseModel]]
    members: list[type[BaseModel]]
    path: list[int | str]
    union: _Union | None


def _resolve(model: type[BaseModel], loc: tuple[int | str, ...]) -> _Place:
    """Follow ``loc`` through the annotations; drops the union tags that pydantic puts into locations."""
    current: list[type[BaseModel]] = [model]
    path: list[int | str] = []
    holders = current
    union: _Union | None = None
    for depth, part in enumerate(loc):
        tagged = [m for m in current if m.__name__ == part or _tag(m) == part]
        # pydantic puts the tag (or the class name) of a union's member into the location, right after the union's field
        if isinstance(part, str) and len(current) > 1 and tagged:
            if union is None and tagged[0].__name__ == part:
                union = _Union(depth, current)
            current = holders = tagged
            continue
        path.append(part)
        holders = current
        if isinstance(part, str):
            found = [f for m in current for f in _models_in(_annotation(m, part))]
            current = found or current
    return _Place(holders, current, path, union)


def _tag_problem(item: ErrorDetails, tags: list[str]) -> tuple[str, str]:
    """(key within the object, message) where the word that tells the members of a union apart is wrong or missing."""
    context = item.get("ctx", {})
    discriminator = context["discriminator"].strip("'")
    known = f"known: {', '.join(tags)}"
    if item["type"] == "union_tag_invalid":
        near = nearest_key(context["tag"], tags)
        return discriminator, f"unknown {discriminator} {context['tag']!r}; " + (
            f"did you mean {near!r}?" if near else known
        )
    for key in item["input"] if isinstance(item.get("input"), dict) else ():
        if isinstance(key, str) and nearest_key(key, [discriminator]):
            return key, _unknown(key, [discriminator])
    return discriminator, f"{discriminator} is missing; {known}"


def _with_form(message: str, given: Any, members: list[type[BaseModel]]) -> str:
    """The message that an object is missing, with an example, and the nearest kind to a word that stands for one."""
    tags = [str(tag) for member in members if (tag := _tag(member)) is not None]
    if not tags:
        return message
    key = "method" if "method" in members[0].model_fields else "kind"
    near = nearest_key(given, tags) if isinstance(given, str) else None
    example = given if given in tags else tags[0]
    told = message.replace("must be an object", f'must be an object such as {{"{key}": "{example}"}}', 1)
    return f"{told}; nearest {key}: {near!r}" if near and near != example else told


def _annotation(model: type[BaseModel], name: str) -> Any:
    field = model.model_fields.get(name)
    return field.annotation if field else None


def _tag(model: type[BaseModel]) -> Any:
    """The word that tells a model from the others of its union: that one which its key takes."""
    field = model.model_fields.get("method") or model.model_fields.get("kind")
    words = typing.get_args(field.annotation) if field else ()
    if len(words) == 1 and isinstance(words[0], str):
        return words[0]
    return field.default if field and not field.is_required() else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for argument in typing.get_args(annotation):
            yield from _models_in(argument)
