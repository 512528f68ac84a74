"""Models and datasets alike: waited for until they are validated, tagged, given aliases, deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar
from urllib.parse import quote

from service.client.connection import Connection, id_of
from service.client.driving import Call
from service.client.errors import ApiError, RejectedError, WaitTimeoutError
from service.client.steps import Items, Steps
from service.contracts.base import LATEST, parse
from service.contracts.errors import InvalidRequestError
from service.datasets.schemas import DatasetOut
from service.jobs.schemas import Waiting
from service.models.schemas import ModelOut
from service.names.aliases.schemas import AliasList, AliasOut, MoveList, MoveOut
from service.resources import ResourceStatus

_Out = TypeVar("_Out", ModelOut, DatasetOut)
ResourceWord = Literal["model", "dataset"]


class ResourceFilters(TypedDict, total=False):
    """See ``models``."""

    name: str | None
    status: ResourceStatus | None
    sha256: str | None
    tags: Mapping[str, str] | None
    limit: int | None


class PushOptions(TypedDict, total=False):
    """See ``push_model``."""

    name: str | None
    tags: Mapping[str, str] | None
    description: str | None
    progress: Callable[[int, int], None] | None


class ResourceCalls(Connection):
    """Calls that models and datasets share, and those of what waits for them.

    A reference is an id, ``NAME@3``, ``NAME@latest`` or ``NAME@prod``.
    """

    @Call
    def wait_ready(self, resource: _Out, *, timeout_seconds: float | None = None) -> Steps[_Out]:
        """Wait until a model or dataset is validated; returns it as it is then.

        Args:
            resource: as ``push_model`` or ``push_dataset`` gave it; client.model(ID) and client.dataset(ID) give it.
            timeout_seconds: how long; None: as long as it takes.

        Raises:
            RejectedError: it was rejected; carries the reason.
            WaitTimeoutError: it takes longer than that, or than the service gives itself: it goes on there.
        """
        return (yield from self._ready(resource, timeout_seconds))

    def _ready_id(self, resource: ModelOut | DatasetOut | str) -> Steps[str]:
        """The id, once what is still being validated is ready."""
        if isinstance(resource, ModelOut) and resource.status != "ready":
            return (yield from self._ready(resource, None)).id
        if isinstance(resource, DatasetOut) and resource.status != "ready":
            return (yield from self._ready(resource, None)).id
        return id_of(resource)

    def _ready_ids(self, given: Mapping[str, ModelOut | DatasetOut | str | None]) -> Steps[dict[str, str | None]]:
        """The ids by the fields of a request, likewise; None where nothing is given."""
        ids: dict[str, str | None] = {}
        for field, resource in given.items():
            ids[field] = None if resource is None else (yield from self._ready_id(resource))
        return ids

    def _ready(self, resource: _Out, timeout_seconds: float | None) -> Steps[_Out]:
        def over(seen: _Out) -> bool:
            return seen.status != "validating" or _late(seen) is not None

        resource = yield from self._get_once(type(resource), resource.links.self, over, timeout_seconds)
        late = _late(resource)
        if late is not None:
            raise WaitTimeoutError(late.message, hint=late.hint)
        if resource.status == "rejected":
            raise RejectedError(resource.problems[0])
        return resource

    @Call
    def update(
        self, resource: _Out, *, tags: Mapping[str, str] | None = None, description: str | None = None, etag: str = "*"
    ) -> Steps[_Out]:
        """Set its tags, in place of all that it had, or its description; what is None stays, "" takes it away.

        Args:
            resource: the model or dataset, as client.model(ID) or client.dataset(ID) gives it.
            tags: new ones.
            description: a new one.
            etag: of what was seen: whoever changed it since then is not overwritten; default: whatever it is.
        """
        body: dict[str, Any] = {} if tags is None else {"tags": dict(tags)}
        if description is not None:
            body["description"] = description or None
        answer = yield from self._json("PATCH", resource.links.self, json=body, headers={"If-Match": etag})
        return type(resource).model_validate(answer)

    @Call
    def delete(self, word: ResourceWord, reference: str) -> Steps[None]:
        """Delete a model or a dataset, by its id or ``NAME@3``; one that is deleted stays so.

        Raises:
            ConflictError: something needs it; its ``where`` says what.
        """
        yield from self._request("DELETE", (yield from self._at(word, reference)))

    @Call
    def aliases(self, word: ResourceWord, reference: str) -> Steps[list[AliasOut]]:
        """All aliases of the name that one of its versions has."""
        path = yield from self._at(word, reference)
        return (yield from self._get(AliasList, f"{path}/aliases")).items

    @Call
    def set_alias(self, word: ResourceWord, reference: str, alias: str) -> Steps[AliasOut]:
        """Have an alias of its name stand for a ready version, whether there is one already or not.

        Raises:
            ApiError: 412 where somebody else moved it at the same moment.
        """
        path = yield from self._alias_at(word, reference, alias)
        try:
            headers = {"If-Match": (yield from self._request("GET", path)).headers["ETag"]}
        except ApiError as error:
            if error.sent.code != "alias-not-found":
                raise
            headers = {"If-None-Match": "*"}
        return AliasOut.model_validate((yield from self._json("PUT", path, headers=headers)))

    @Call
    def drop_alias(self, word: ResourceWord, reference: str, alias: str) -> Steps[None]:
        """End an alias of its name; one that is not there stays so."""
        yield from self._request("DELETE", (yield from self._alias_at(word, reference, alias)))

    @Call
    def alias_moves(self, word: ResourceWord, reference: str, alias: str) -> Steps[list[MoveOut]]:
        """Who moved the alias when: the last 100 moves, the newest first."""
        path = yield from self._alias_at(word, reference, alias)
        return (yield from self._get(MoveList, f"{path}/moves")).items

    def _list(self, path: str, kind: type[_Out], filters: ResourceFilters) -> Items[_Out, None]:
        params: dict[str, object] = {name: filters.get(name) for name in ("name", "status", "sha256")}
        params |= {f"tag.{key}": value for key, value in (filters.get("tags") or {}).items()}
        yield from self._all(path, kind, params, filters.get("limit"))

    def _alias_at(self, word: ResourceWord, reference: str, alias: str) -> Steps[str]:
        return f"{(yield from self._at(word, reference))}/aliases/{quote(alias, safe='')}"

    def _at(self, word: ResourceWord, reference: str) -> Steps[str]:
        """The path of one; of a name with a slash, which no path can hold, by its id."""
        resource = (yield from self._id_of(word, reference)) if "/" in reference else reference
        return f"/v1/{word}s/{quote(resource, safe='@')}"

    def _id_of(self, word: ResourceWord, reference: str) -> Steps[str]:
        asked = parse(reference)
        if asked is None:
            raise InvalidRequestError(
                f"{reference!r} is no reference.", hint="Name a version: NAME@3, NAME@latest or NAME@ALIAS."
            )
        params: dict[str, Any] = {"name": asked.name, "limit": 200}
        while True:
            page = yield from self._json("GET", f"/v1/{word}s", params=params)
            for resource in page["items"]:
                if asked.word not in (None, LATEST):
                    path = f"{resource['links']['self']}/aliases"
                    found = yield from self._get(AliasList, path)
                    by_alias = [alias.id for alias in found.items if alias.alias == asked.word]
                    if by_alias:
                        return by_alias[0]
                    raise _nothing(word, reference)
                if resource["version"] == asked.version or (asked.word == LATEST and resource["status"] == "ready"):
                    return str(resource["id"])
            if page["next_cursor"] is None:
                raise _nothing(word, reference)
            params["cursor"] = page["next_cursor"]


def _late(resource: ModelOut | DatasetOut) -> Waiting | None:
    """What the service says of a validation that it has not come to for very long."""
    waiting = resource.waiting
    return waiting if waiting is not None and waiting.code == "validation-overdue" else None


def _nothing(word: ResourceWord, reference: str) -> InvalidRequestError:
    return InvalidRequestError(f"There is no {word} {reference!r}.", hint="List the versions of the name.")


def told_of(options: PushOptions) -> dict[str, Any]:
    """What a request for a model or a dataset says for people, as far as anything is to be said."""
    tags = options.get("tags")
    told = {"tags": None if tags is None else dict(tags), "description": options.get("description")}
    return {name: value for name, value in told.items() if value is not None}
