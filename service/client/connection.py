"""What the calls of all nouns share: one service, asked as patiently as the client was told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from service.contracts.config import QuantizationConfig
from service.transport import Transport, WaitTimeoutError

BLOCK_BYTES = 1024 * 1024
LONG_POLL_SECONDS = 25.0
_Seen = TypeVar("_Seen")


class Connection:
    """See ``QuantmillClient``."""

    def __init__(
        self, base_url: str, key: str | None = None, *, timeout_seconds: float = 30.0, patience_seconds: float = 30.0
    ) -> None:
        self._transport = Transport(base_url, key, timeout_seconds=timeout_seconds, patience_seconds=patience_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def _json(self, method: str, path: str, *, wait_seconds: float = 0.0, **request: Any) -> Any:
        if wait_seconds:
            request["params"] = {"wait": f"{wait_seconds:g}"}
        send = self._transport.send
        return self._transport.patiently(lambda: send(method, path, wait_seconds=wait_seconds, **request)).json()

    def _wait(
        self, look: Callable[[float], _Seen], done: Callable[[_Seen], bool], timeout_seconds: float | None, what: str
    ) -> _Seen:
        ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = LONG_POLL_SECONDS if ends is None else max(0.0, ends - time.monotonic())
            seen = look(min(LONG_POLL_SECONDS, left))
            if done(seen):
                return seen
            if ends is not None and time.monotonic() >= ends:
                raise WaitTimeoutError(
                    f"{what} has not ended within {timeout_seconds:g} s.", hint="It goes on in the service: ask again."
                )


def plain_config(config: QuantizationConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """A config as a request holds it, resolved or as sparse as it is."""
    return config.model_dump(mode="json") if isinstance(config, QuantizationConfig) else dict(config or {})
