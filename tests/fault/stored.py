"""The store against the rows: every file that a row names is whole, and a collection leaves no other."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db import Database
from service.files import repository as files
from service.storage import FileStore, file_sha256
from service.tables import Upload
from worker.upkeep.garbage import discard_garbage, empty_trash, remove_leftovers

# Nothing is too young to be collected.
_ANY_AGE = -1.0
_MANY = 1_000_000
_LOCK = "collect.lock"


def collect_all(database: Database, store: FileStore) -> None:
    """Collect what ages decide about at once, as the reconciler would sooner or later."""
    discard_garbage(database, store, _MANY, age_seconds=_ANY_AGE)
    empty_trash(database, store, _MANY, age_seconds=_ANY_AGE)
    remove_leftovers(database, store, _MANY, age_seconds=_ANY_AGE)


def file_trouble(store: FileStore, sha256: str, size_bytes: int | None) -> str | None:
    """What is wrong with a stored file; None: it is whole."""
    path = store.path(sha256)
    if not path.exists():
        return "is not in the store"
    if size_bytes not in (None, path.stat().st_size) or file_sha256(path) != sha256:
        return "is damaged"
    return None


def troubles(session: Session, store: FileStore, *, known: Collection[str]) -> list[str]:
    """Of files that rows name, those which are not whole; ``known`` were looked at elsewhere."""
    found = []
    for file in files.list_named(session):
        trouble = None if file.sha256 in known else file_trouble(store, file.sha256, file.size_bytes)
        if trouble is not None:
            names = ", ".join(f"{name.kind} {name.id}" for name in files.names_of(session, file.sha256))
            found.append(f"the file {file.sha256} ({names}) {trouble}")
    return found


def strays(session: Session, store: FileStore) -> list[str]:
    """Files that no row names, and that belong to no upload on its way; after a collection there is none."""
    named = {store.path(file.sha256) for file in files.list_named(session)}
    uploads = set(session.scalars(select(Upload.id)))
    return [
        f"{path.relative_to(store.root)} was left in the store"
        for path in sorted(store.root.rglob("*"))
        if path.is_file() and path not in named and not _is_part(path, store, uploads) and path.name != _LOCK
    ]


def _is_part(path: Path, store: FileStore, uploads: Collection[str]) -> bool:
    return path.parent == store.incoming and path.name.partition(".")[0] in uploads
