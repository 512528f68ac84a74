"""Times operations of what the service depends on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from service.monitoring.declarations import STORE


@contextmanager
def timed_store(operation: str) -> Iterator[None]:
    """Time an operation of the file store, such as ``put`` or ``get``; one that raises counts as an error.

    Args:
        operation: a word of a small fixed set.
    """
    begun = perf_counter()
    result = "error"
    try:
        yield
        result = "ok"
    finally:
        STORE.labels(operation, result).observe(perf_counter() - begun)
