"""Waiting for what is validated after its upload: models and datasets alike."""

from __future__ import annotations

from typing import TypeVar

from service.client.connection import Connection
from service.datasets.schemas import DatasetOut
from service.models.schemas import ModelOut
from service.transport import ApiError

_Noun = TypeVar("_Noun", ModelOut, DatasetOut)


class ValidationCalls(Connection):
    """Calls that models and datasets share."""

    def wait_ready(self, noun: _Noun, *, timeout_seconds: float | None = None) -> _Noun:
        """Wait until a model or dataset is validated; returns it as it is then.

        Raises:
            ApiError: it was rejected; carries the reason.
            WaitTimeoutError: it takes longer than that.
        """
        path, kind = noun.links.self, type(noun)

        def look(wait_seconds: float) -> _Noun:
            return kind.model_validate(self._json("GET", path, wait_seconds=wait_seconds))

        noun = self._wait(look, lambda seen: seen.status != "validating", timeout_seconds, path)
        if noun.status == "rejected":
            raise ApiError(noun.problems[0])
        return noun
