"""The state of observers in the middle of a pass as arrays, to go on with in another process.

A observer is made by its settings and changes as it sees values. Both are attributes: numbers, words, arrays, lists and
tuples of these, and objects of this package, which are gone into. Whatever else there is (functions that search, grids)
was given by whoever made the observer, does not change, and is left as it is.

The settings are among the attributes: the state of fresh observers tells what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from worker.quantizer.run.checkpoint import Arrays, pack, unpack

_PACKAGE = __name__.rpartition(".")[0]
_HEAD = "head"


class Snapshot:
    """What observers have seen so far.

    Args:
        observers: in order; arrays are not copied before ``to_bytes``.
    """

    def __init__(self, observers: Sequence[object]) -> None:
        self._arrays: Arrays = {}
        self._head = [self._of(observer) for observer in observers]

    @property
    def size_bytes(self) -> int:
        """Of the arrays, which are almost all of it."""
        return sum(array.nbytes for array in self._arrays.values())

    def to_bytes(self, done: int) -> bytes:
        """For a checkpoint.

        Args:
            done: samples seen.

        Raises:
            TypeError: an array holds no plain numbers.
        """
        words = json.dumps({"done": done, "observers": self._head}).encode()
        return pack({_HEAD: np.frombuffer(words, np.uint8), **self._arrays})

    def _of(self, value: object) -> Any:
        if isinstance(value, np.ndarray | np.generic):  # before floats, of which np.float64 is one
            name = f"{len(self._arrays)}"
            self._arrays[name] = np.asarray(value)
            return {"array" if isinstance(value, np.ndarray) else "number": name}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self._of(item) for item in value]}
        if _is_ours(value):
            return {"class": _name(value), "fields": {key: self._of(item) for key, item in _fields(value).items()}}
        return {"given": type(value).__qualname__}


def restore(observers: Sequence[object], data: bytes) -> int:
    """Bring fresh observers to where those stood that ``data`` was made of; returns how many samples they have seen.

    All of them, or none if there is an error.

    Args:
        observers: made by the same settings, in the same order.
        data: of ``Snapshot.to_bytes``.

    Raises:
        ValueError: these are other bytes, or of other observers.
        LookupError: likewise.
    """
    arrays = unpack(data)
    head = json.loads(arrays[_HEAD].tobytes())
    if len(head["observers"]) != len(observers):
        raise ValueError("it is of another number of observers")
    changes: list[tuple[object, str, Any]] = []
    for observer, stored in zip(observers, head["observers"], strict=True):
        _plan(observer, stored, arrays, changes)
    for owner, key, value in changes:
        setattr(owner, key, value)
    return int(head["done"])


def _plan(owner: object, stored: Any, arrays: Arrays, changes: list[tuple[object, str, Any]]) -> None:
    """Note what is to be set in ``owner`` and the objects that it holds."""
    fields = _fields(owner)
    if not isinstance(stored, dict) or stored.get("class") != _name(owner) or stored["fields"].keys() != fields.keys():
        raise ValueError(f"it is of another observer than {_name(owner)}")
    for key, value in stored["fields"].items():
        if isinstance(value, dict) and "class" in value:
            if is_dataclass(fields[key]):
                continue  # settings: the same in every observer made alike
            _plan(fields[key], value, arrays, changes)
        elif not (isinstance(value, dict) and "given" in value):
            changes.append((owner, key, _value(value, arrays)))


def _value(stored: Any, arrays: Arrays) -> Any:
    if not isinstance(stored, dict):
        return stored
    ((kind, content),) = stored.items()
    if kind in ("list", "tuple"):
        items = [_value(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "number":
        return arrays[content][()]
    if kind == "array":
        return arrays[content]
    raise ValueError(f"no value of a observer: {kind}")


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith(f"{_PACKAGE}.") and hasattr(value, "__dict__") and not callable(value)


def _fields(value: object) -> dict[str, Any]:
    return vars(value)


def _name(value: object) -> str:
    return type(value).__qualname__
