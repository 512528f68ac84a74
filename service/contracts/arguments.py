"""Arguments of public functions: the keywords of a ``TypedDict`` are those of a signature, and every kind is checked.

What is of the wrong kind is refused at once, in words of the function's own description, not where it is first used.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from service.contracts.errors import InvalidRequestError, QuantmillError
from service.contracts.surfaces import for_python

_Given = ParamSpec("_Given")
_T = TypeVar("_T")
# Where these are read, they are refused in words of their own.
_CHECKED_ELSEWHERE = frozenset({"config", "module", "loader", "calibration_loader", "evaluation_loader"})
_WORDS: dict[Any, str] = {
    str: "a string", bytes: "bytes", bool: "a bool", int: "an int", float: "a number", Path: "a path",
    datetime: "a datetime", Mapping: "a dict", Callable: "a function", NoneType: "None",
}  # fmt: skip
_LONGEST = 300


class _OwnDefault:
    """The default in a signature, if it is one that the function's description tells."""

    def __repr__(self) -> str:
        return "..."


def checked(function: Callable[_Given, _T]) -> Callable[_Given, _T]:
    """``function`` with the signature that its ``TypedDict`` of keywords means, and with its arguments checked.

    Its errors are in the words of Python.

    Raises:
        InvalidRequestError: of the function: an argument is of the wrong kind; says which is expected.
    """
    known = _signature(function)
    names = [name for name in known.parameters if name not in _CHECKED_ELSEWHERE]

    @functools.cache
    def hints() -> dict[str, Any]:
        return _hints(function)

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _T:
        given = known.bind(*args, **kwargs).arguments
        for name in names:
            if name in given and name in hints():
                _check(function, name, given[name], hints()[name])
        try:
            return function(*args, **kwargs)
        except QuantmillError as error:
            error.reword(for_python)
            raise

    call.__signature__ = known  # type: ignore[attr-defined]
    return call


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD or not str(last.annotation).startswith("Unpack["):
        return signature
    keywords = get_args(get_type_hints(function)[last.name])[0]
    return signature.replace(parameters=[*others, *_keywords_of(keywords, function.__doc__ or "")])


def _keywords_of(keywords: Any, described: str) -> list[inspect.Parameter]:
    """The keys of a ``TypedDict`` as parameters, in the order in which they are described."""
    found = []
    for name, reference in keywords.__annotations__.items():
        written = reference.__forward_arg__ if isinstance(reference, ForwardRef) else str(reference)
        own = None if written.endswith("| None") else _OwnDefault()
        # postponed annotations hide it from __required_keys__
        required = written.startswith("Required[")
        found.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if required else own,
                annotation=written.removeprefix("Required[").removesuffix("]") if required else written,
            )
        )
    return sorted(found, key=lambda one: described.find(f" {one.name}: "))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each argument by name; those of keywords beside the others."""
    found = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in found:
            found |= get_type_hints(get_args(found.pop(name))[0])
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and name in found:
            found[name] = GenericAlias(tuple, (found[name], ...))
    return found


def _check(function: Callable[..., Any], name: str, value: Any, hint: Any) -> None:
    if _fits(value, hint):
        return
    *others, last = dict.fromkeys(_words(hint))
    expected = f"{', '.join(others)} or {last}" if others else last
    given = type(value).__name__
    if isinstance(value, list | tuple):
        given = f"{given} of {', '.join(sorted({type(one).__name__ for one in value})) or 'nothing'}"
    raise InvalidRequestError(f"{name}: expected {expected}, not {given}.", hint=_described(function, name))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as it is told without looking into containers."""
    kind = get_origin(hint) or hint
    if hint is Any:
        return True
    if kind is tuple:
        return all(_fits(one, get_args(hint)[0]) for one in value)
    if kind in (Union, UnionType) or isinstance(hint, TypeVar):
        return any(_fits(value, one) for one in _choices(hint))
    if kind is Annotated:
        return _fits(value, get_args(hint)[0])
    if kind is Literal:  # which word it is, the service says with all that it knows
        return isinstance(value, tuple({type(word) for word in get_args(hint)}))
    if kind is Sequence:
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(_fits(one, get_args(hint)[0]) for one in value)
    if not isinstance(kind, type):
        return True
    wider: dict[type, Any] = {Path: os.PathLike, float: int | float}
    return isinstance(value, wider.get(kind, kind))


def _choices(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, TypeVar):
        return hint.__constraints__ or (hint.__bound__ or Any,)
    return get_args(hint)


def _words(hint: Any) -> Iterator[str]:
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType) or isinstance(hint, TypeVar):
        for one in _choices(hint):
            yield from _words(one)
    elif kind in (tuple, Annotated):
        yield from _words(get_args(hint)[0])
    elif kind is Sequence:
        yield f"a list (each {' or '.join(dict.fromkeys(_words(get_args(hint)[0])))})"
    elif kind is Literal:
        yield from (repr(word) for word in get_args(hint))
    else:
        yield _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _described(function: Callable[..., Any], name: str) -> str | None:
    """What the function's description says of the argument."""
    found = re.search(rf"^ +{name}: ((?:.|\n {{8,}})+)", inspect.getdoc(function) or "", re.MULTILINE)
    if found is None:
        return None
    told = " ".join(found[1].split())
    return f"{name}: {told}"[:_LONGEST]
