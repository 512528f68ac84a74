"""All components of the pages on one page, for whoever works on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from service.contracts.errors import Problem
from service.dashboard.pages import PageRoute, page
from service.deps import AppDep, PrincipalDep
from service.errors import RouteNotFoundError
from service.reports import charts

router = APIRouter(route_class=PageRoute, include_in_schema=False)
# Each token with what is read on it, if it is a ground, or what it is read on.
_GROUNDS = ("page", "card", "code", "good-back", "bad-back", "unsure-back", "plain-back", "band")
_INKS = ("text", "quiet", "link", "good", "bad", "unsure", "plain", "first", "second")
_AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
_PROBLEM = Problem(
    type="/v1/problems#non-finite-data",
    title="The data holds no numbers",
    status=422,
    detail="Array 'x' holds NaN.",
    hint="Take the sample out.",
    code="non-finite-data",
)


@router.get("/style")
async def get_style(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Every component, in every state it has; on a service that is open, as one in development is.

    Raises:
        RouteNotFoundError: the service is not open.
    """
    if not app.settings.open:
        raise RouteNotFoundError("There is no such page.", hint="QUANTMILL_OPEN=true serves it.")
    return page(request, "style_page.html.jinja", **_shown())


def _shown() -> dict[str, Any]:
    points = [(step, 1 / (1 + step)) for step in range(20)]
    return {
        "grounds": _GROUNDS,
        "inks": _INKS,
        "at": _AT,
        "one": _PROBLEM,
        "picture": charts.curve(points, "finetune: loss"),
        "points": points[:3],
        "options": [("int8", "int8"), ("a8w8", "a8w8")],
    }
