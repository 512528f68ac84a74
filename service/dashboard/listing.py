"""What the lists of all pages have in common: paging, and filters that stand in the address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel, Field

from service.contracts.errors import InvalidRequestError
from service.dashboard.pages import changed_query
from service.deps import AppState
from service.http import PLAIN_TEXT
from service.pagination import CursorCodec, Position

_Read = TypeVar("_Read")
# Of a filter in the address.
Words = Annotated[str, Query(max_length=200, pattern=PLAIN_TEXT)]
# The same as a field of a record of filters.
FilterWords = Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT)]


class ListFilters(BaseModel):
    """What a list is filtered by; all of it stands in the address, and blank fields filter nothing."""

    @property
    def any(self) -> bool:
        """Whether something is left out: a list without rows is one without matches then."""
        return self != type(self)()


async def one_page(
    request: Request,
    app: AppState,
    scope: str,
    cursor: str | None,
    read: Callable[[Position | None], tuple[_Read, Position | None]],
) -> tuple[_Read, str | None]:
    """What one page of a list shows, and the query of the next one; None: there is none.

    Args:
        request: for the page.
        app: of the process.
        scope: the list and its filters, as of ``CursorCodec``; the tenant is part of it.
        cursor: as it stands in the address; None: the list begins.
        read: reads what stands behind a position; gives that of the last item, too, where there is more.

    Raises:
        InvalidCursorError: the cursor is not one of this list.
    """
    codec = CursorCodec(app.settings, f"pages|{scope}")
    after = None if cursor is None else codec.decode(cursor)
    found, last = await app.reads.run(lambda: read(after))
    return found, None if last is None else changed_query(request, cursor=codec.encode(last))


def one_of(given: str, allowed: Sequence[str], query: str) -> str | None:
    """What a filter asks for; None: nothing.

    Raises:
        InvalidRequestError: it is not one of those.
    """
    if given and given not in allowed:
        raise InvalidRequestError(f"{given!r} is not one of {', '.join(allowed)}.", query=query)
    return given or None


def pairs(given: str, query: str) -> dict[str, str]:
    """The label, or the tag, that a filter asks for.

    Raises:
        InvalidRequestError: it is not KEY=VALUE.
    """
    key, sign, value = given.partition("=")
    if given and (not sign or not key):
        raise InvalidRequestError(f"{given!r} is not a {query}.", hint="Use KEY=VALUE.", query=query)
    return {key: value} if given else {}
