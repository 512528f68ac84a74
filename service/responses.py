"""How an endpoint tells, in the OpenAPI document, with which problems it may answer."""

from __future__ import annotations

from typing import Any

from service.contracts.errors import Problem, QuantmillError

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
