"""Models and datasets alike: waited for until they are validated, tagged, given aliases, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar
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

_Noun = TypeVar("_Noun", ModelOut, DatasetOut)


class ValidationCalls(Connection):
    """Calls that models and datasets share."""

    @Call
    def wait_ready(self, noun: _Noun, *, timeout_seconds: float | None = None) -> Steps[_Noun]:
        """Wait until a model or dataset is validated; returns it as it is then.

        Raises:
            RejectedError: it was rejected; carries the reason.
            WaitTimeoutError: it takes longer than that, or than the service gives itself: it goes on there.
        """
        return (yield from self._ready(noun, timeout_seconds))

    def _ready_id(self, noun: ModelOut | DatasetOut | str) -> Steps[str]:
        """The id, once what is still being validated is ready."""
        if isinstance(noun, ModelOut) and noun.status != "ready":
            yield from self._ready(noun, None)
        if isinstance(noun, DatasetOut) and noun.status != "ready":
            yield from self._ready(noun, None)
        return id_of(noun)

    def _ready_ids(self, given: Mapping[str, ModelOut | DatasetOut | str | None]) -> Steps[dict[str, str | None]]:
        """The ids by the fields of a request, likewise; None where nothing is given."""
        ids: dict[str, str | None] = {}
        for field, noun in given.items():
            ids[field] = None if noun is None else (yield from self._ready_id(noun))
        return ids

    def _ready(self, noun: _Noun, timeout_seconds: float | None) -> Steps[_Noun]:
        path, kind = noun.links.self, type(noun)

        def look(wait_seconds: float) -> Steps[_Noun]:
            return kind.model_validate((yield from self._json("GET", path, wait_seconds=wait_seconds)))

        def over(seen: _Noun) -> bool:
            return seen.status != "validating" or _late(seen) is not None

        noun = yield from self._wait(look, over, timeout_seconds, path)
        late = _late(noun)
        if late is not None:
            raise WaitTimeoutError(late.message, hint=late.hint)
        if noun.status == "rejected":
            raise RejectedError(noun.problems[0])
        return noun


def _late(noun: ModelOut | DatasetOut) -> Waiting | None:
    """What the service says of a validation that it has not come to for very long."""
    waiting = noun.waiting
    return waiting if waiting is not None and waiting.code == "validation-overdue" else None


NounWord = Literal["model", "dataset"]
_Out = TypeVar("_Out", ModelOut, DatasetOut)


class NounCalls(Connection):
    """Calls of ``/v1/models`` and ``/v1/datasets``.

    A reference is an id, ``NAME@3``, ``NAME@latest`` or ``NAME@prod``.
    """

    @Call
    def update(
        self, noun: _Out, *, tags: Mapping[str, str] | None = None, description: str | None = None, etag: str = "*"
    ) -> Steps[_Out]:
        """Set its tags, in place of all that it had, or its description; what is None stays, "" takes it away.

        Args:
            noun: the model or dataset.
            tags: new ones.
            description: a new one.
            etag: of what was seen: whoever changed it since then is not overwritten; default: whatever it is.
        """
        body: dict[str, Any] = {} if tags is None else {"tags": dict(tags)}
        if description is not None:
            body["description"] = description or None
        answer = yield from self._json("PATCH", noun.links.self, json=body, headers={"If-Match": etag})
        return type(noun).model_validate(answer)

    @Call
    def delete(self, word: NounWord, reference: str) -> Steps[None]:
        """Delete a model or a dataset, by its id or ``NAME@3``; one that is deleted stays so.

        Raises:
            ConflictError: something needs it; its ``where`` says what.
        """
        yield from self._request("DELETE", (yield from self._at(word, reference)))

    @Call
    def aliases(self, word: NounWord, reference: str) -> Steps[list[AliasOut]]:
        """All aliases of the name that one of its versions has."""
        path = yield from self._at(word, reference)
        return AliasList.model_validate((yield from self._json("GET", f"{path}/aliases"))).items

    @Call
    def set_alias(self, word: NounWord, reference: str, alias: str) -> Steps[AliasOut]:
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
    def drop_alias(self, word: NounWord, reference: str, alias: str) -> Steps[None]:
        """End an alias of its name; one that is not there stays so."""
        yield from self._request("DELETE", (yield from self._alias_at(word, reference, alias)))

    @Call
    def alias_moves(self, word: NounWord, reference: str, alias: str) -> Steps[list[MoveOut]]:
        """Who moved the alias when: the last 100 moves, the newest first."""
        path = yield from self._alias_at(word, reference, alias)
        return MoveList.model_validate((yield from self._json("GET", f"{path}/moves"))).items

    def _list(
        self,
        path: str,
        kind: type[_Out],
        limit: int | None,
        *,
        name: str | None,
        status: ResourceStatus | None,
        sha256: str | None,
        tags: Mapping[str, str] | None,
    ) -> Items[_Out, None]:
        filters = {"name": name, "status": status, "sha256": sha256}
        filters |= {f"tag.{key}": value for key, value in (tags or {}).items()}
        yield from self._all(path, kind, filters, limit)

    def _alias_at(self, word: NounWord, reference: str, alias: str) -> Steps[str]:
        return f"{(yield from self._at(word, reference))}/aliases/{quote(alias, safe='')}"

    def _at(self, word: NounWord, reference: str) -> Steps[str]:
        """The path of one; of a name with a slash, which no path can hold, by its id."""
        noun = (yield from self._id_of(word, reference)) if "/" in reference else reference
        return f"/v1/{word}s/{quote(noun, safe='@')}"

    def _id_of(self, word: NounWord, reference: str) -> Steps[str]:
        asked = parse(reference)
        if asked is None:
            raise InvalidRequestError(
                f"{reference!r} is no reference.", hint="Name a version: NAME@3, NAME@latest or NAME@ALIAS."
            )
        params: dict[str, Any] = {"name": asked.name, "limit": 200}
        while True:
            page = yield from self._json("GET", f"/v1/{word}s", params=params)
            for noun in page["items"]:
                if asked.word not in (None, LATEST):
                    found = AliasList.model_validate((yield from self._json("GET", f"{noun['links']['self']}/aliases")))
                    by_alias = [alias.id for alias in found.items if alias.alias == asked.word]
                    if by_alias:
                        return by_alias[0]
                    raise _nothing(word, reference)
                if noun["version"] == asked.version or (asked.word == LATEST and noun["status"] == "ready"):
                    return str(noun["id"])
            if page["next_cursor"] is None:
                raise _nothing(word, reference)
            params["cursor"] = page["next_cursor"]


def _nothing(word: NounWord, reference: str) -> InvalidRequestError:
    return InvalidRequestError(f"There is no {word} {reference!r}.", hint="List the versions of the name.")


def told_of(tags: Mapping[str, str] | None, description: str | None) -> dict[str, Any]:
    """What a request for a model or a dataset says for people, as far as anything is to be said."""
    told = {"tags": None if tags is None else dict(tags), "description": description}
    return {name: value for name, value in told.items() if value is not None}
