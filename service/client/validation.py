"""Waiting for what is validated after its upload: models and datasets alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from service.client.connection import Connection, id_of
from service.client.driving import Call
from service.client.errors import RejectedError, WaitTimeoutError
from service.client.steps import Steps
from service.datasets.schemas import DatasetOut
from service.jobs.schemas import Waiting
from service.models.schemas import ModelOut

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
