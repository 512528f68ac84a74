"""Shared HTTP parts: pagination, ETags and preconditions, waiting, documented problems of endpoints."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import Depends, Header, Query, Request, Response
from pydantic import AwareDatetime, BeforeValidator

from service.contracts.base import LABEL_KEY
from service.contracts.errors import InvalidRequestError, Problem, QuantmillError
from service.deps import AppDep, AppState
from service.notifier import Watched
from service.pagination import CursorCodec, Page, Position, link_header
from service.repository import Version

MAX_WAIT_SECONDS = 30.0
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
# Text of a query without control characters.
PLAIN_TEXT = r"^[^\x00-\x1f\x7f]*$"
# Without news, a long poll looks for itself after this.
_AGAIN_SECONDS = 10.0
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[Tt _]")
_Seen = TypeVar("_Seen")
_Item = TypeVar("_Item")
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items per page.")]
CursorParameter = Annotated[str | None, Query(max_length=512, description="next_cursor of the previous page.")]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Maximum number of seconds to wait for a change before the response is sent.",
    ),
]


def _written_out(value: object) -> object:
    """Refuse a number: pydantic would take it for seconds since 1970, which no schema tells of."""
    if isinstance(value, str) and not _DATE.match(value):
        raise ValueError("must be a date and time with a time zone (RFC 3339), such as 2026-01-05T08:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written_out)]


def etag_matches(header: str | None, etag: str) -> bool:
    """True if an If-None-Match header names ``etag`` (weak comparison) or is ``*``."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags


EventForm = Annotated[
    Literal["json", "stream"] | None,
    Query(
        alias="format",
        description="json: a page of events; stream: an event stream. Default: determined by the Accept header.",
    ),
]


async def wants_event_page(request: Request, form: EventForm = None) -> bool:
    """Dependency: whether a page of events is asked for, not a stream: by ``format``, else by Accept."""
    if form is not None:
        return form == "json"
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


EventPageDep = Annotated[bool, Depends(wants_event_page)]


def keyed_filters(request: Request, word: str, *, most: int) -> dict[str, str]:
    """What a list is filtered by, as ``WORD=KEY=VALUE``, ``WORD.KEY=VALUE`` or ``WORD[KEY]=VALUE``: labels, tags.

    Raises:
        InvalidRequestError: a key is none, or given twice, or there are too many.
    """
    found: dict[str, str] = {}
    for name, given in request.query_params.multi_items():
        key, value = _key_of(name, word), given
        if key is None and name == word:
            key, _, value = given.partition("=")
            if "=" not in given:
                key = ""
        if key is None:
            continue
        if not re.fullmatch(LABEL_KEY, key) or key in found or "\0" in value:
            raise InvalidRequestError(
                f"{name!r} is not a valid {word} filter.", hint=f"Use {word}=KEY=VALUE once per key.", query=name
            )
        found[key] = value
        if len(found) > most:
            hint = f"A resource has at most {most} {word}s."
            raise InvalidRequestError(f"Too many {word}s to filter by.", hint=hint, query=name)
    return found


def _key_of(name: str, word: str) -> str | None:
    """KEY of a parameter ``WORD.KEY`` or ``WORD[KEY]``; None for every other one."""
    if name.startswith(f"{word}."):
        return name.removeprefix(f"{word}.")
    if name.startswith(f"{word}[") and name.endswith("]"):
        return name.removeprefix(f"{word}[").removesuffix("]")
    return None


def keyed_parameter(word: str, most: int) -> dict[str, Any]:
    """What the OpenAPI document tells of ``keyed_filters``; for ``openapi_extra``."""
    one_of_them = {"type": "string", "pattern": f"{LABEL_KEY.removesuffix('$')}={PLAIN_TEXT.removeprefix('^')}"}
    schema = {"type": "array", "items": one_of_them, "maxItems": most}
    told = (
        f"Only resources with these {word}s, each given once per key as KEY=VALUE. {word}.KEY=VALUE and "
        f"{word}[KEY]=VALUE are accepted too."
    )
    one = {"name": word, "in": "query", "required": False, "description": told}
    return {"parameters": [one | {"style": "form", "explode": True, "schema": schema}]}


async def poll(
    app: AppState,
    table: Watched,
    row_id: str,
    look: Callable[[], _Seen],
    *,
    version: Callable[[_Seen], Version],
    done: Callable[[_Seen], bool],
    wait_seconds: float,
) -> _Seen:
    """Look (in a thread), and again each time the row has changed, until ``done`` or the time is over.

    Those who wait for the same row share one look per change, so that many of them cost next to nothing.

    Args:
        app: of the process.
        table: of the row.
        row_id: the row's id, which tells the looks apart: only who may see the row gets as far as to wait for it.
        look: reads what is to be told of the row.
        version: of the row, as it was seen.
        done: tells whether what was seen is worth an answer.
        wait_seconds: 0 looks once.

    Returns:
        What was seen last.
    """
    seen = await app.reads.run(look)
    if wait_seconds <= 0 or done(seen):
        return seen
    ends = time.monotonic() + wait_seconds
    with app.notifier.watching(table, row_id) as watch:
        while not done(seen) and not watch.released and (left := ends - time.monotonic()) > 0:
            if await watch.beyond(version(seen), min(left, _AGAIN_SECONDS)):
                seen = await watch.shared("seen", look)
            else:
                # what is told beside the row may have changed, such as whether a worker is there for it
                seen = await app.reads.run(look)
    return seen


def etag_of(row: Any) -> str:
    """Entity tag of a row with a ``row_version``: changes whenever anything of it does that a reader can see."""
    return f'"{row.row_version}"'


def unless_changed(
    response: Response, if_none_match: str | None, etag: str, *, retry_seconds: int | None = None
) -> Response | None:
    """304 for who has this version already; None: it is to be told, with the headers that ``response`` has now.

    Args:
        response: of the endpoint.
        if_none_match: the header of the request.
        etag: of what is there.
        retry_seconds: when it is worth to ask again; None: it will not change by itself.
    """
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if retry_seconds is not None:
        headers["Retry-After"] = str(retry_seconds)
    if etag_matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return None


class PageRequest:
    """The page of a list that a request asks for, by ``limit`` and ``cursor``; every list is answered by it.

    Args:
        request: for the list.
        response: to which the link to the next page is added.
        app: of the process.
        limit: items per page.
        cursor: as the request has it; None: the list begins.
    """

    def __init__(self, request: Request, response: Response, app: AppState, limit: int, cursor: str | None) -> None:
        self._request, self._response, self._app = request, response, app
        self._limit, self._cursor = limit, cursor

    async def answer(
        self,
        scope: str,
        find: Callable[[Position | None, int], tuple[Sequence[_Seen], Position | None]],
        shown: Callable[[_Seen], _Item],
    ) -> Page[_Item]:
        """The page.

        Args:
            scope: the list, the tenant and the filters, as of ``CursorCodec``.
            find: reads, in a thread: given the last item of the page before and how many, gives them and the position
                of the last if there are more.
            shown: an item as the answer tells of it; in the same thread.

        Raises:
            InvalidCursorError: the cursor is not one of this list with these filters.
        """
        codec = CursorCodec(self._app.settings, scope)
        after = None if self._cursor is None else codec.decode(self._cursor)

        def read() -> tuple[list[_Item], Position | None]:
            rows, last = find(after, self._limit)
            return [shown(row) for row in rows], last

        items, last = await self._app.reads.run(read)
        if last is None:
            return Page(items=items)
        next_cursor = codec.encode(last)
        given = [(name, value) for name, value in self._request.query_params.multi_items() if name != "cursor"]
        self._response.headers.update(link_header(quote(self._request.scope["path"]), next_cursor, given))
        return Page(items=items, next_cursor=next_cursor, has_more=True)


async def page_request(
    request: Request, response: Response, app: AppDep, limit: Limit = DEFAULT_LIMIT, cursor: CursorParameter = None
) -> PageRequest:
    """Dependency: which page is asked for."""
    return PageRequest(request, response, app, limit, cursor)


PageDep = Annotated[PageRequest, Depends(page_request)]


def only_parameters(*names: str, keyed: str | None = None) -> Callable[[Request], Awaitable[None]]:
    """Dependency that refuses query parameters which would otherwise be passed over in silence."""

    async def check(request: Request) -> None:
        for name in request.query_params:
            if name not in names and (keyed is None or (name != keyed and _key_of(name, keyed) is None)):
                raise InvalidRequestError(
                    f"Unknown query parameter {name!r}; known: {', '.join(sorted(names))}"
                    + (f", {keyed}" if keyed else ""),
                    hint="Correct or remove the parameter.",
                    query=name,
                )

    return check


PROBLEM_CODES = "x-problem-codes"
Responses = dict[int | str, dict[str, Any]]


def problems(*kinds: type[QuantmillError]) -> Responses:
    """One response per status, with the codes of its problems. For the ``responses`` of an endpoint.

    What follows from an endpoint's parameters and body (an id that is not there, a value out of bounds) is added to
    every endpoint by ``service.openapi`` and need not be told here.
    """
    found: Responses = {}
    for status in sorted({kind.status for kind in kinds}):
        same = {kind.code: kind.title for kind in kinds if kind.status == status}
        found[status] = {"model": Problem, "description": describe(same), PROBLEM_CODES: sorted(same)}
    return found


def describe(titles: dict[str, str]) -> str:
    """What a response says of its problems, given as code and title."""
    return "; ".join(f"`{code}`: {titles[code]}" for code in sorted(titles))


IfMatch = Annotated[
    str | None, Header(max_length=512, description="ETag of the resource as you last saw it, or * for any version.")
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=512, description="* to create the resource only if it does not exist.")
]
_ANY = "*"


class PreconditionRequiredError(
    QuantmillError, code="precondition-required", title="Precondition required", status=428
):
    """The request changes a shared resource and must state which version it expects."""


class PreconditionFailedError(QuantmillError, code="precondition-failed", title="Precondition failed", status=412):
    """The resource was changed, created or deleted by another request in the meantime."""


@dataclass(frozen=True)
class Conditions:
    """What a request says of that which it changes."""

    if_match: str | None = None
    if_none_match: str | None = None

    def require(self, hint: str) -> None:
        """Let no request change anything that says nothing.

        Raises:
            PreconditionRequiredError: it has no condition.
        """
        if self.if_match is None and self.if_none_match is None:
            raise PreconditionRequiredError("The request has no precondition header.", hint=hint, header="If-Match")

    def check(self, etag: str | None, what: str) -> None:
        """Compare with what is there.

        Args:
            etag: of what is there; None: nothing is.
            what: it is, for the error.

        Raises:
            PreconditionFailedError: it is something else.
        """
        now = f"{what} has the ETag {etag}" if etag is not None else f"{what} does not exist"
        hint = "Get the current version and try again."
        if self.if_match is not None and (etag is None or not {_ANY, etag} & _tags(self.if_match)):
            raise PreconditionFailedError(
                f"If-Match is {self.if_match}, but {now}.", hint=hint, header="If-Match", etag=etag
            )
        if self.if_none_match is not None and etag is not None and {_ANY, etag} & _tags(self.if_none_match):
            raise PreconditionFailedError(
                f"If-None-Match is {self.if_none_match}, but {now}.", hint=hint, header="If-None-Match", etag=etag
            )


def _tags(header: str) -> set[str]:
    """Strong tags alone: a weak one proves nothing to who is about to write."""
    return {tag.strip() for tag in header.split(",")}
