"""The application on a socket, in a thread of the tests: as a process serves it, and there at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import uvicorn
from fastapi import FastAPI

from service.limits import HEAD_BYTES
from service.server import ApiServer, ProblemProtocol, bound_reading
from tests.support.patience import PATIENCE_SECONDS


class Served:
    """Its address while it is served; its state is opened and closed by the caller."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        state = app.state.app
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http=ProblemProtocol,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ws="none",
            lifespan="off",
            timeout_keep_alive=round(PATIENCE_SECONDS),
            timeout_graceful_shutdown=1,
        )
        self._server = ApiServer(config, on_stop=state.notifier.release)
        # whoever comes before it is served is kept waiting by the kernel
        self._listener = socket.create_server(("127.0.0.1", 0))
        bound_reading(self._listener, state.settings.reading_seconds)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_SECONDS)
        self._listener.close()
        assert not self._thread.is_alive()


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of the application, for the length of the block."""
    with Served(app) as server:
        yield server.url
