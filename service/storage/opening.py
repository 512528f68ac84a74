"""Opens the store that the settings name."""

from __future__ import annotations

from collections.abc import Callable

from service.settings import Settings
from service.storage.base import Store
from service.storage.folder import FileStore


def open_store(
    settings: Settings, *, patience_seconds: float = 0.0, may_begin: Callable[[], bool] = lambda: False
) -> Store:
    """The store of an installation; a bucket is not asked anything yet.

    Args:
        settings: of the installation.
        patience_seconds: for how long a call goes on asking a bucket that is away; a request has less time than a job.
        may_begin: whether a bucket that has never been used may become the store.
    """
    if not settings.storage_url:
        return FileStore(settings.storage_dir)
    from service.storage.bucket import BucketStore  # installations on a folder do without its library

    return BucketStore(
        settings.storage_url,
        settings.storage_dir,
        cache_bytes=settings.storage_cache_bytes,
        patience_seconds=patience_seconds,
        may_begin=may_begin,
    )
