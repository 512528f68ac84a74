"""Serves the metrics of this process on a port of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from service.contracts.command_errors import AddressError
from service.settings import Settings

log = logging.getLogger(__name__)


@contextmanager
def serving(settings: Settings, registry: CollectorRegistry) -> Iterator[None]:
    """Serve ``GET /metrics`` while the block runs, in threads of its own; nothing where the settings name no port.

    Args:
        settings: name address and port.
        registry: what is shown.

    Raises:
        AddressError: it cannot be listened on.
    """
    host, port = settings.metrics_host, settings.metrics_port
    if not port:
        yield
        return
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise AddressError(
            f"Cannot serve metrics on {host} port {port}: {error.strerror}.",
            hint="Set QUANTMILL_METRICS_HOST and QUANTMILL_METRICS_PORT; every process needs a port of its own.",
        ) from None
    log.info("metrics on %s port %d", host, port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
