"""What a call does, step by step, without doing it: requests, pauses and work, asked for by generators.

A driver (``driving.py``) does each step, blocking or awaited, and sends back what came of it; so a call is written once
for both clients. A generator may be closed at any step: its ``finally`` blocks ask for no further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import httpx

from service.contracts.errors import InvalidRequestError

BLOCK_BYTES = 1024 * 1024
# What came of a step that its generator may want to do something about.
FAILURES = (httpx.TransportError, OSError)
_T = TypeVar("_T")
_Item = TypeVar("_Item")
_End = TypeVar("_End")


@dataclass(frozen=True)
class FilePart:
    """The bytes of a file from ``start`` up to ``end``, as the body of a request."""

    path: Path
    start: int
    end: int
    sent: Callable[[int], None]  # told the offset behind each block that went out

    def blocks(self) -> Generator[bytes, None, None]:
        """The part in blocks; fewer bytes where the file has shrunk: the service will say so."""
        offset = self.start
        with self.path.open("rb") as stream:
            stream.seek(offset)
            while offset < self.end:
                block = stream.read(min(BLOCK_BYTES, self.end - offset))
                if not block:
                    return
                offset += len(block)
                yield block


def _check_path(path: str) -> None:
    if not path.isprintable():
        raise InvalidRequestError(f"{path!r} is no path of the service.", hint="Check the id.")


@dataclass(frozen=True)
class Send:
    """One request, once. Gives the whole answer, whatever its status."""

    method: str
    path: str
    timeout_seconds: float
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: FilePart | None = None

    def __post_init__(self) -> None:
        _check_path(self.path)


@dataclass(frozen=True)
class Open:
    """A GET whose answer comes in pieces: lines of text, or blocks of bytes. Gives an ``Opened``."""

    path: str
    headers: Mapping[str, str]
    silence_seconds: float
    lines: bool

    def __post_init__(self) -> None:
        _check_path(self.path)


@dataclass(frozen=True)
class Opened:
    """An answer that comes in pieces; that of an error is there as a whole."""

    response: httpx.Response
    pieces: Any


@dataclass(frozen=True)
class Next:
    """The next piece of an answer. Gives None at its end."""

    opened: Opened


@dataclass(frozen=True)
class Close:
    """No more of that answer is wanted."""

    opened: Opened


@dataclass(frozen=True)
class Sleep:
    """A pause."""

    seconds: float


@dataclass(frozen=True)
class Act:
    """Something that computes or waits for a disk. Gives its result."""

    act: Callable[[], Any]


@dataclass(frozen=True)
class Give(Generic[_Item]):
    """One item for whoever iterates over the call."""

    item: _Item


Step: TypeAlias = Send | Open | Next | Close | Sleep | Act
Steps: TypeAlias = Generator[Step, Any, _T]
Items: TypeAlias = Generator[Step | Give[_Item], Any, _End]


class Course(Generic[_Item]):
    """A generator of steps on its way.

    Attributes:
        answer: of the last step, handed back with the next ``advance``.
        failure: raised in its place.
        opened: streams that were opened meanwhile.
        end: what the generator gave in the end.
    """

    def __init__(self, steps: Items[_Item, Any]) -> None:
        self._steps = steps
        self.answer: Any = None
        self.failure: Exception | None = None
        self.opened: list[Opened] = []
        self.end: Any = None

    def advance(self) -> Step | Give[_Item] | None:
        """The next step, None once there is no more."""
        answer, failure = self.answer, self.failure
        self.answer = self.failure = None
        try:
            return self._steps.send(answer) if failure is None else self._steps.throw(failure)
        except StopIteration as stop:
            self.end = stop.value
            return None

    def close(self) -> None:
        """End it where it stands."""
        self._steps.close()


def heard(items: Items[_Item, _End], tell: Callable[[_Item], None]) -> Steps[_End]:
    """The steps of an iteration, whose items ``tell`` is told."""
    course: Course[_Item] = Course(items)
    try:
        while (step := course.advance()) is not None:
            if isinstance(step, Give):
                tell(step.item)
                continue
            try:
                course.answer = yield step
            except FAILURES as error:
                course.failure = error
    finally:
        course.close()
    end: _End = course.end
    return end


def work(act: Callable[[], _T]) -> Steps[_T]:
    """Do something that computes or waits for a disk."""
    done: _T = yield Act(act)
    return done


def open_stream(path: str, headers: Mapping[str, str], *, silence_seconds: float, lines: bool) -> Steps[Opened]:
    """Begin a GET whose answer comes in pieces; check its status first."""
    opened: Opened = yield Open(path, headers, silence_seconds, lines)
    return opened


def next_line(opened: Opened) -> Steps[str | None]:
    """The next line, None at the end."""
    line: str | None = yield Next(opened)
    return line


def next_block(opened: Opened) -> Steps[bytes | None]:
    """The next block of bytes, None at the end."""
    block: bytes | None = yield Next(opened)
    return block
