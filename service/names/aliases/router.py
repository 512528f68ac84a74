"""HTTP routes of aliases, the same for models and datasets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import JSONResponse

from service.deps import AppDep, PrincipalDep, reading
from service.http import (
    Conditions,
    IfMatch,
    IfNoneMatch,
    PreconditionFailedError,
    PreconditionRequiredError,
    Responses,
    etag_matches,
    problems,
)
from service.names.aliases import service
from service.names.aliases.schemas import (
    AliasList,
    AliasNotFoundError,
    AliasOut,
    InvalidAliasError,
    MoveList,
    TooManyAliasesError,
)
from service.names.kinds import DATASETS, MODELS, Named, ResourceKind

_PUT_RESPONSES: Responses = {201: {"model": AliasOut, "description": "The alias was created."}}
_PUT_REFUSALS = (InvalidAliasError, PreconditionFailedError, PreconditionRequiredError, TooManyAliasesError)


def alias_routes(kind: ResourceKind[Named]) -> APIRouter:
    """The routes for the aliases of one noun."""
    parameter = f"{kind.word}_id"
    router = APIRouter(prefix=f"/v1/{kind.word}s/{{{parameter}}}/aliases", tags=[f"{kind.word}s"])
    noun: str = Path(alias=parameter, description=f"Any {kind.word} with the name.")
    target: str = Path(alias=parameter, description=f"The {kind.word} that the alias will refer to.")

    @router.get("", name=f"list_{kind.word}_aliases")
    @reading
    def list_aliases(app: AppDep, principal: PrincipalDep, noun_id: str = noun) -> AliasList:
        """List all aliases of a name."""
        return AliasList(items=service.of(app, kind, principal.tenant_id, noun_id))

    @router.get(
        "/{alias}",
        name=f"get_{kind.word}_alias",
        response_model=AliasOut,
        responses={304: {"description": "Not modified"}, **problems(AliasNotFoundError)},
    )
    @reading
    def get_alias(
        alias: str,
        app: AppDep,
        principal: PrincipalDep,
        if_none_match: Annotated[str | None, Header()] = None,
        noun_id: str = noun,
    ) -> Response:
        """Get an alias of a name, with its ETag."""
        found = service.get(app, kind, principal.tenant_id, noun_id, alias)
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        if etag_matches(if_none_match, found.etag):
            return Response(status_code=304, headers=headers)
        return _answer(found, 200, headers)

    @router.get("/{alias}/moves", name=f"list_{kind.word}_alias_moves", responses=problems(AliasNotFoundError))
    @reading
    def list_moves(alias: str, app: AppDep, principal: PrincipalDep, noun_id: str = noun) -> MoveList:
        """List who moved an alias and when: its last 100 moves, newest first; also for a deleted alias."""
        return MoveList(items=service.moves(app, kind, principal.tenant_id, noun_id, alias))

    @router.put(
        "/{alias}",
        name=f"put_{kind.word}_alias",
        response_model=AliasOut,
        responses={**_PUT_RESPONSES, **problems(*_PUT_REFUSALS)},
    )
    async def put_alias(
        alias: str,
        app: AppDep,
        principal: PrincipalDep,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        noun_id: str = target,
    ) -> Response:
        """Create an alias (If-None-Match: *), or move it to this version (If-Match with its ETag)."""
        conditions = Conditions(if_match, if_none_match)
        done = await app.writes.run(lambda: service.put(app, principal, kind, noun_id, alias, conditions))
        return _answer(done, 201 if done.is_new else 200, {"ETag": done.etag})

    @router.delete(
        "/{alias}", name=f"delete_{kind.word}_alias", status_code=204, responses=problems(PreconditionFailedError)
    )
    async def delete_alias(
        alias: str, app: AppDep, principal: PrincipalDep, if_match: IfMatch = None, noun_id: str = noun
    ) -> Response:
        """Delete an alias of a name. Safe to repeat, unless If-Match is given."""
        conditions = Conditions(if_match)
        await app.writes.run(lambda: service.drop(app, principal, kind, noun_id, alias, conditions))
        return Response(status_code=204)

    return router


def _answer(shown: service.ShownAlias, status: int, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse(shown.alias.model_dump(mode="json"), status_code=status, headers=headers)


routers = (alias_routes(MODELS), alias_routes(DATASETS))
