"""What the pages of models and of datasets have in common: lists by name, versions, aliases, tags, deleting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from service.contracts.errors import InvalidRequestError
from service.contracts.validation_words import message_of
from service.dashboard.forms import STATES, FormFields, sent, told_at
from service.dashboard.listing import FilterWords, ListFilters, one_of, one_page, pairs
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.http import Conditions, CursorParameter, PreconditionFailedError, etag_of
from service.names.aliases import service as aliases
from service.names.aliases.schemas import AliasNotFoundError, AliasOut, InvalidAliasError
from service.names.aliases.service import ShownAlias
from service.names.kinds import Named, ResourceKind
from service.names.repository import ResourceQuery
from service.names.service import Dependents, NounPatch, delete, dependents, identify, list_page, update
from service.pagination import Position
from service.principal import Principal
from service.tables import Dataset, Model

# Of the process, the tenant and a reference: the row and what its page shows beside what both kinds have.
Facts = Callable[[AppState, str, str], tuple[Named, dict[str, Any]]]
# Among what is wrong: somebody else was faster.
CHANGED = "changed"
_REJECTED = "rejected"
STATUSES = ("validating", "ready", _REJECTED)
_CHANGED = (
    "Somebody else has changed this since you opened it. The stored values are above, your input is below. Save again "
    "to overwrite."
)
_LIMIT = 50
_VERSIONS = 50


@dataclass(frozen=True)
class Edit:
    """The forms of a page as they are filled in, with what is wrong."""

    description: str  # of people
    tags: str  # a line each
    etag: str  # of what is changed, as it was seen
    alias: str = ""  # that is to be set
    # the alias that stands elsewhere with its entity tag, once the page has said so: it is moved knowingly
    moved: str = ""
    preprocessing: str | None = None  # of the next version of a dataset; None: nothing is typed
    errors: dict[str, str] = field(default_factory=dict)  # by field

    @property
    def status(self) -> int:
        """Of the page."""
        if CHANGED in self.errors:
            return 412
        return 409 if self.moved else 422 if self.errors else 200

    @classmethod
    def of(cls, row: Model | Dataset) -> Edit:
        """The forms as they are before anybody types."""
        tags = "\n".join(f"{key}={value}" for key, value in row.tags.items())
        return cls(row.description or "", tags, etag_of(row))


class Filters(ListFilters):
    """Of a list; rejected uploads are only in the list of their own."""

    search: FilterWords = ""
    status: FilterWords = ""
    name: FilterWords = ""
    tag: FilterWords = ""

    def query(self) -> ResourceQuery:
        """For the service.

        Raises:
            InvalidRequestError: there is no such status, or the tag is none.
        """
        status, tags = one_of(self.status, STATUSES, "status"), pairs(self.tag, "tag")
        without = None if status else _REJECTED
        return ResourceQuery(status, self.name or None, None, tags, self.search or None, without)


async def _listing(
    request: Request, app: AppState, tenant_id: str, kind: ResourceKind[Named], filters: Filters, cursor: str | None
) -> tuple[list[Named], dict[str, Any]]:
    """The rows of one page of a list, the versions of a name together, and what its template takes beside them."""
    statuses = [(one, STATES[one].word) for one in STATUSES]
    shown = {"filters": filters, "statuses": statuses, "errors": {}, "next_query": None}
    try:
        query = filters.query()
    except InvalidRequestError as error:
        return [], {**shown, "errors": {"tag": told_at(error)}, "aliases": {}, "left_out": False}

    def read(after: Position | None) -> tuple[tuple[list[Named], dict[str, Any]], Position | None]:
        rows, last = list_page(app, kind, tenant_id, query, after=after, limit=_LIMIT)
        words = aliases.words_of(app, kind, tenant_id, {row.name for row in rows})
        return (rows, {"aliases": words, "left_out": _left_out(app, kind, tenant_id, query)}), last

    (rows, beside), next_query = await one_page(request, app, f"{kind.word}s|{tenant_id}|{query}", cursor, read)
    return _by_name(rows), {**shown, **beside, "next_query": next_query}


def _left_out(app: AppState, kind: ResourceKind[Named], tenant_id: str, query: ResourceQuery) -> bool:
    """Whether the list would be longer with rejected uploads."""
    if query.without is None:
        return False
    rows, _ = list_page(app, kind, tenant_id, replace(query, status=query.without, without=None), after=None, limit=1)
    return bool(rows)


def _by_name(rows: Sequence[Named]) -> list[Named]:
    """Names in the order of their newest version, each with its versions."""
    names = {row.name: place for place, row in reversed(list(enumerate(rows)))}
    return sorted(rows, key=lambda row: names[row.name])


def _kin(app: AppState, kind: ResourceKind[Named], tenant_id: str, row: Named) -> tuple[list[Named], list[AliasOut]]:
    """The newest versions of its name, and all aliases of it."""
    versions, _ = list_page(app, kind, tenant_id, ResourceQuery(name=row.name), after=None, limit=_VERSIONS)
    return versions, aliases.of(app, kind, tenant_id, row.id)


def _with_typed(edit: Edit | None, stored: Edit) -> Edit:
    """The forms as they are stored, or with what was typed; the form that was not sent is as stored."""
    if edit is None:
        return stored
    if CHANGED in edit.errors:
        return replace(edit, etag=stored.etag)  # the page shows what is stored: what is sent next knows it
    if "alias" in edit.errors:
        return replace(stored, alias=edit.alias, moved=edit.moved, errors=edit.errors)
    if edit.preprocessing is not None:
        return replace(stored, preprocessing=edit.preprocessing, errors=edit.errors)
    return edit


async def shown_resource(
    kind: ResourceKind[Named],
    in_list: Callable[[Named], Any],
    facts: Facts[Named],
    request: Request,
    app: AppState,
    principal: Principal,
    ref: str,
    typed: Edit | None,
) -> Response:
    """The page of one.

    Args:
        kind: as of ``resource_routes``, as the two behind it.
        in_list: likewise.
        facts: likewise.
        request: for the page.
        app: of the process.
        principal: who asks.
        ref: an id or a reference.
        typed: a form of the page that was sent and is not taken; None: none was.
    """

    def read() -> dict[str, Any]:
        row, told = facts(app, principal.tenant_id, ref)
        versions, known = _kin(app, kind, principal.tenant_id, row)
        edit = _with_typed(typed, Edit.of(row))
        return {"versions": [in_list(one) for one in versions], "aliases": known, "edit": edit, **told}

    shown = await app.reads.run(read)
    return page(request, f"{kind.word}.html.jinja", status=shown["edit"].status, **shown)


def resource_routes(
    kind: ResourceKind[Named],
    in_list: Callable[[Named], Any],
    facts: Facts[Named],
) -> APIRouter:
    """The routes that list, show and change models or datasets.

    Args:
        kind: which of both.
        in_list: one as lists have it.
        facts: of the process, the tenant and a reference, the row and what its page shows beside what both have.
    """
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    base = f"/{kind.word}s/{{ref}}"

    @router.get(f"/{kind.word}s")
    async def list_resources(
        request: Request,
        app: AppDep,
        principal: PrincipalDep,
        filters: Annotated[Filters, Query()],
        cursor: CursorParameter = None,
    ) -> Response:
        """By name, each with its versions; the newest first."""
        rows, context = await _listing(request, app, principal.tenant_id, kind, filters, cursor)
        context[f"{kind.word}s"] = [in_list(row) for row in rows]
        return page(request, f"{kind.word}s.html.jinja", status=422 if context["errors"] else 200, **context)

    @router.get(base)
    async def get_resource(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
        """One, by its id or by a reference."""
        return await show(request, app, principal, ref, None)

    async def show(request: Request, app: AppState, principal: Principal, ref: str, typed: Edit | None) -> Response:
        return await shown_resource(kind, in_list, facts, request, app, principal, ref, typed)

    @router.post(f"{base}/edit")
    async def edit(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
        """Change tags and description."""
        form = await sent(request)
        typed = Edit(_lines(form, "description"), _lines(form, "tags"), form.text("etag") or "*")
        patch, errors = _patch(typed)
        if patch is None:
            return await show(request, app, principal, ref, replace(typed, errors=errors))
        try:
            await app.writes.run(lambda: update(app, principal, kind, ref, patch, Conditions(typed.etag)))
        except PreconditionFailedError:
            return await show(request, app, principal, ref, replace(typed, errors={CHANGED: _CHANGED}))
        return see(request, f"/{kind.word}s/{quote(ref, safe='@')}")

    @router.post(f"{base}/aliases")
    async def set_alias(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
        """Have an alias stand for it; one that stands for another version is moved once that was told."""
        form = await sent(request)
        word, told = form.text("alias") or "", form.text("moved") or ""
        resource_id = await app.reads.run(lambda: identify(app, kind, principal.tenant_id, ref))
        try:
            elsewhere = await app.writes.run(lambda: _put(app, principal, kind, resource_id, word, told))
        except InvalidAliasError as error:
            typed = Edit("", "", "", word, errors={"alias": told_at(error)})
            return await show(request, app, principal, ref, typed)
        if elsewhere is not None:
            said = f"{word} points to version {elsewhere.alias.version}. Press Move alias to move it here."
            typed = Edit("", "", "", word, f"{word} {elsewhere.etag}", errors={"alias": said})
            return await show(request, app, principal, ref, typed)
        return see(request, f"/{kind.word}s/{resource_id}")

    @router.post(f"{base}/aliases/end")
    async def end_alias(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
        """End an alias of its name."""
        word = (await sent(request)).text("alias") or ""

        def drop() -> str:
            resource_id = identify(app, kind, principal.tenant_id, ref)
            aliases.drop(app, principal, kind, resource_id, word, Conditions())
            return resource_id

        return see(request, f"/{kind.word}s/{await app.writes.run(drop)}")

    @router.get(f"{base}/delete")
    async def ask_delete(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
        """Ask once more."""
        found = await app.reads.run(lambda: dependents(app, kind, principal.tenant_id, ref))
        return page(request, "resource_delete.html.jinja", word=kind.word, found=found, unconfirmed=False)

    @router.post(f"{base}/delete")
    async def delete_resource(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
        """Delete it, if nothing needs it; where schedules go on with an older version, once that is confirmed."""
        confirmed = (await sent(request)).ticked("confirmed")

        def remove() -> Dependents | None:
            with suppress(kind.not_found):  # a second click: what is deleted stays so
                found = dependents(app, kind, principal.tenant_id, ref)
                if found.latest and not found.needs.count and not confirmed:
                    return found
            delete(app, principal, kind, ref)
            return None

        found = await app.writes.run(remove)
        if found is None:
            return see(request, f"/{kind.word}s")
        shown = {"word": kind.word, "found": found, "unconfirmed": True}
        return page(request, "resource_delete.html.jinja", status=409, **shown)

    return router


def _put(
    app: AppState, by: Principal, kind: ResourceKind[Named], resource_id: str, word: str, told: str
) -> ShownAlias | None:
    """Make the alias, or move it from where it was told to stand; else nothing is done, and where it stands is told."""
    try:
        known = aliases.get(app, kind, by.tenant_id, resource_id, word)
    except AliasNotFoundError:
        aliases.put(app, by, kind, resource_id, word, Conditions(if_none_match="*"))
        return None
    if known.alias.id != resource_id and told != f"{word} {known.etag}":
        return known
    aliases.put(app, by, kind, resource_id, word, Conditions(known.etag))
    return None


def _lines(form: FormFields, name: str) -> str:
    return (form.text(name) or "").replace("\r\n", "\n")


def _patch(typed: Edit) -> tuple[NounPatch | None, dict[str, str]]:
    """What a form asks to change, or nothing; and what is wrong with it, by field."""
    errors: dict[str, str] = {}
    tags: dict[str, str] = {}
    for line in filter(None, map(str.strip, typed.tags.splitlines())):
        key, sign, value = line.partition("=")
        if not sign:
            errors["tags"] = f"{line[:80]!r} is not a tag. Use KEY=VALUE, one per line."
        elif key.strip() in tags:
            errors["tags"] = f"The tag {key.strip()[:80]!r} is given twice."
        tags[key.strip()] = value.strip()
    try:
        patch = NounPatch.model_validate({"tags": tags, "description": typed.description or None})
    except ValidationError as error:
        for one in error.errors():
            errors.setdefault(str(one["loc"][0]), f"{': '.join(map(str, one['loc'][1:2]))} {message_of(one)}".strip())
    return (None if errors else patch), errors
