"""Drivers, which do the steps of calls: one blocks, the other awaits. And what makes methods of generators of steps."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from types import MethodType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    overload,
)

import anyio
import anyio.to_thread
import httpx

from service.client.errors import shown
from service.client.steps import (
    BLOCK_BYTES,
    FAILURES,
    Close,
    Course,
    FilePart,
    Give,
    Items,
    Next,
    Open,
    Opened,
    Send,
    Sleep,
    Step,
    Steps,
)
from service.client.trace import trace_headers
from service.contracts.arguments import checked
from service.contracts.errors import QuantmillError

_CONNECT_SECONDS = 10.0
# Nothing of a body moves for so long: the connection is dead, and there is time left for another one.
_STALL_SECONDS = 30.0
# Four characters of a key that long tell nothing of the others.
_TELLABLE_CHARACTERS = 24
_Calls = TypeVar("_Calls")
_Given = ParamSpec("_Given")
_T = TypeVar("_T")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Place:
    """A service as drivers reach it; its repr tells of the key what tells keys apart."""

    url: str
    trust_environment: bool  # whether proxies of the environment may come between
    key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def __repr__(self) -> str:
        told = "no key" if self.key is None else "key set"
        if self.key is not None and len(self.key) >= _TELLABLE_CHARACTERS:
            told = f"key ends in {self.key[-4:]}"
        return f"Place({shown(self.url)!r}, {told})"


class BlockingDriver:
    """Does steps in the thread that asks for them."""

    def __init__(self, place: Place, words: Callable[[str], str]) -> None:
        self._words = words
        self._http = httpx.Client(base_url=place.url, headers=place.headers, trust_env=place.trust_environment)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def run(self, steps: Steps[_T]) -> _T:
        """What the steps end with."""
        course: Course[Any] = Course(steps)
        for _ in self._items(course):
            raise TypeError("steps that give items are to be iterated over")
        return cast(_T, course.end)

    def iterate(self, steps: Items[_T, None]) -> Generator[_T, None, None]:
        """The items that the steps give."""
        return self._items(Course(steps))

    def _items(self, course: Course[_T]) -> Generator[_T, None, None]:
        try:
            while (step := course.advance()) is not None:
                if isinstance(step, Give):
                    yield step.item
                    continue
                try:
                    course.answer = self._do(step, course)
                except FAILURES as error:
                    course.failure = error  # for the steps to handle, or to raise again
        except QuantmillError as error:
            error.reword(self._words)
            raise
        finally:
            course.close()
            for stream in course.opened:
                stream.response.close()

    def _do(self, step: Step, course: Course[Any]) -> Any:
        if isinstance(step, Send):
            content = None if step.content is None else _blocks(step.content)
            return self._http.request(step.method, step.path, content=content, **_request(step))
        if isinstance(step, Open):
            response = self._http.send(_stream_request(self._http, step), stream=True)
            course.opened.append(
                Opened(response, response.iter_lines() if step.lines else response.iter_bytes(BLOCK_BYTES))
            )
            if response.is_error:
                response.read()
            return course.opened[-1]
        if isinstance(step, Next):
            return next(step.opened.pieces, None)
        if isinstance(step, Close):
            return step.opened.response.close()
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        return step.act()


class AwaitingDriver:
    """Does steps in the event loop, asyncio's or trio's; what computes or reads files, in threads of it."""

    def __init__(self, place: Place, words: Callable[[str], str]) -> None:
        self._words = words
        self._http = httpx.AsyncClient(base_url=place.url, headers=place.headers, trust_env=place.trust_environment)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def run(self, steps: Steps[_T]) -> _T:
        """What the steps end with."""
        course: Course[Any] = Course(steps)
        async with aclosing(self._items(course)) as items:
            async for _ in items:
                raise TypeError("steps that give items are to be iterated over")
        return cast(_T, course.end)

    def iterate(self, steps: Items[_T, None]) -> AsyncGenerator[_T, None]:
        """The items that the steps give."""
        return self._items(Course(steps))

    async def _items(self, course: Course[_T]) -> AsyncGenerator[_T, None]:
        try:
            while (step := course.advance()) is not None:
                if isinstance(step, Give):
                    yield step.item
                    continue
                try:
                    course.answer = await self._do(step, course)
                except FAILURES as error:
                    course.failure = error  # for the steps to handle, or to raise again
        except QuantmillError as error:
            error.reword(self._words)
            raise
        finally:
            course.close()
            for stream in course.opened:
                await stream.response.aclose()

    async def _do(self, step: Step, course: Course[Any]) -> Any:
        if isinstance(step, Send):
            content = None if step.content is None else _blocks_awaited(step.content)
            return await self._http.request(step.method, step.path, content=content, **_request(step))
        if isinstance(step, Open):
            response = await self._http.send(_stream_request(self._http, step), stream=True)
            course.opened.append(
                Opened(response, response.aiter_lines() if step.lines else response.aiter_bytes(BLOCK_BYTES))
            )
            if response.is_error:
                await response.aread()
            return course.opened[-1]
        if isinstance(step, Next):
            return await anext(step.opened.pieces, None)
        if isinstance(step, Close):
            return await step.opened.response.aclose()
        if isinstance(step, Sleep):
            return await anyio.sleep(step.seconds)
        return await anyio.to_thread.run_sync(step.act)


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=min(_CONNECT_SECONDS, seconds), write=min(_STALL_SECONDS, seconds / 2))


def _request(step: Send) -> dict[str, Any]:
    given: dict[str, Any] = {"headers": {**trace_headers(), **step.headers}, "timeout": _timeout(step.timeout_seconds)}
    if step.params:
        given["params"] = step.params
    if step.json is not None:
        given["json"] = step.json
    return given


def _stream_request(http: httpx.Client | httpx.AsyncClient, step: Open) -> httpx.Request:
    headers = {**trace_headers(), **step.headers}
    return http.build_request("GET", step.path, headers=headers, timeout=_timeout(step.silence_seconds))


def _blocks(part: FilePart) -> Iterator[bytes]:
    offset = part.start
    with closing(part.blocks()) as blocks:
        for block in blocks:
            yield block
            offset += len(block)
            part.sent(offset)


async def _blocks_awaited(part: FilePart) -> AsyncIterator[bytes]:
    offset = part.start
    with closing(part.blocks()) as blocks:
        while (block := await anyio.to_thread.run_sync(next, blocks, None)) is not None:
            yield block
            offset += len(block)
            part.sent(offset)


class Blocking:
    """A client whose calls return when they are done."""

    _driver: BlockingDriver


class Awaiting:
    """A client whose calls are awaited."""

    _driver: AwaitingDriver


def _blocking_call(steps: Callable[..., Any]) -> Callable[..., Any]:
    def call(calls: Any, /, *args: Any, **kwargs: Any) -> Any:
        return calls._driver.run(steps(calls, *args, **kwargs))

    return call


def _awaited_call(steps: Callable[..., Any]) -> Callable[..., Any]:
    async def call(calls: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await calls._driver.run(steps(calls, *args, **kwargs))

    return call


def _iteration(steps: Callable[..., Any]) -> Callable[..., Any]:
    def call(calls: Any, /, *args: Any, **kwargs: Any) -> Any:
        return calls._driver.iterate(steps(calls, *args, **kwargs))

    return call


class _Form(NamedTuple):
    """What a method is on one of the clients."""

    made: Callable[[Callable[..., Any]], Callable[..., Any]]  # of its steps
    wrapper: Any = None  # of what the steps give; None: that itself is returned


class _Method(Generic[_Calls, _Given, _Made]):
    """A method of both clients, made of the steps that it takes: a function like any other, to ``help`` and editors."""

    _blocking: ClassVar[_Form]
    _awaited: ClassVar[_Form]

    def __init__(self, steps: Callable[Concatenate[_Calls, _Given], _Made]) -> None:
        self.__doc__ = steps.__doc__
        known = checked(steps)
        self._functions = {False: _described(known, self._blocking), True: _described(known, self._awaited)}

    def _of(self, instance: Any, owner: type) -> Any:
        function = self._functions[issubclass(owner, Awaiting)]
        return function if instance is None else MethodType(function, instance)


def _described(steps: Callable[..., Any], form: _Form) -> Callable[..., Any]:
    """The function of a form, with the signature of its steps and what it returns itself."""
    function = functools.wraps(steps)(form.made(steps))
    signature = inspect.signature(steps)
    # written Steps[X], or Items[X, None]
    item = str(signature.return_annotation).partition("[")[2].removesuffix("]").removesuffix(", None")
    shown = item if form.wrapper is None else f"{form.wrapper.__name__}[{item}]"
    function.__annotations__ = {
        **function.__annotations__,
        "return": item if form.wrapper is None else form.wrapper[item],
    }
    function.__signature__ = signature.replace(return_annotation=shown)  # type: ignore[attr-defined]
    return function


class Call(_Method[_Calls, _Given, Steps[_T]], Generic[_Calls, _Given, _T]):
    """A method that returns what its steps end with."""

    _blocking = _Form(_blocking_call)
    _awaited = _Form(_awaited_call)

    @overload
    def __get__(
        self, instance: None, owner: type[Awaiting]
    ) -> Callable[Concatenate[Any, _Given], Coroutine[Any, Any, _T]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, _Given], _T]: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[_Given, _T]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[_Given, Coroutine[Any, Any, _T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self._of(instance, owner)


class Each(_Method[_Calls, _Given, Items[_T, None]], Generic[_Calls, _Given, _T]):
    """A method that gives an iterator over the items of its steps."""

    _blocking = _Form(_iteration, Iterator)
    _awaited = _Form(_iteration, AsyncIterator)

    @overload
    def __get__(
        self, instance: None, owner: type[Awaiting]
    ) -> Callable[Concatenate[Any, _Given], AsyncGenerator[_T, None]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, _Given], Generator[_T, None, None]]: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[_Given, Generator[_T, None, None]]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[_Given, AsyncGenerator[_T, None]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self._of(instance, owner)
