"""Secrets of tests, and the search for them in what services leave behind: logs and databases."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr
from sqlalchemy import NullPool, create_engine, exists, select

from service.keys.files import LOCAL_KEY_FILE, PEPPER_FILE
from service.keys.secrets import weakness
from service.server_urls import driver_url
from service.tables import Base

KINDS = {
    "QUANTMILL_API_KEY": "key of the installation", "QUANTMILL_KEY_PEPPER": "pepper",
    "QUANTMILL_DATABASE_URL": "password of the database", "QUANTMILL_BROKER_URL": "password of the broker",
}  # fmt: skip
# Any key at all, whoever made it: see service.keys.secrets.
KEY_FORM = re.compile(rb"qm_[0-9a-z]{26}_[A-Za-z0-9_-]{43}")
SEARCHED = (".log", ".db", ".db-wal")
_SECRET_FILES = {PEPPER_FILE: "pepper", LOCAL_KEY_FILE: "key of this machine"}
_RUN_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_RUN_BYTES = 20
_BLANKED = bytes(byte if byte in _RUN_LETTERS else 32 for byte in range(256))
_known: dict[bytes, str] = {}


def remember(kind: str, secret: str | None) -> None:
    """A secret that no log and no database may hold from now on; one that guards nothing may stand in any text."""
    if secret is not None and weakness(secret) is None:
        _known[secret.encode()] = kind


def plain(value: object) -> str:
    """A setting's text, of a secret one, too."""
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def remember_variables(variables: Mapping[str, str]) -> None:
    """The secrets among the settings of a process."""
    for name, kind in KINDS.items():
        value = variables.get(name)
        if value and name.endswith("_URL"):
            password = urlsplit(value).password
            remember(kind, password)
            remember(kind, None if password is None else unquote(password))
        else:
            remember(kind, value)


def kinds_in(data: bytes) -> set[str]:
    """Which kinds of secrets stand in it; never the secrets themselves.

    There are thousands, most of letters and digits alone: those are looked for in what is of such letters, which of a
    database is little.
    """
    runs = b" ".join(run for run in data.translate(_BLANKED).split() if len(run) >= _RUN_BYTES)
    found = {kind for secret, kind in _known.items() if secret in (runs if _is_run(secret) else data)}
    return found | ({"key"} if KEY_FORM.search(runs) else set())


def _is_run(secret: bytes) -> bool:
    return len(secret) >= _RUN_BYTES and not secret.translate(None, _RUN_LETTERS)


def refuse(places: Iterable[tuple[str, bytes]]) -> None:
    """Fail if a secret stands in one of these places, and say where and of what kind."""
    told = [f"{place}: {kind}" for place, data in places for kind in sorted(kinds_in(data))]
    assert not told, "secrets were kept:\n" + "\n".join(told)


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Logs and SQLite databases; the secrets of an installation in this folder are looked for from now on, too."""
    found = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    for path in found:
        if path.name in _SECRET_FILES:
            remember(_SECRET_FILES[path.name], path.read_text().strip())
    for path in found:
        if path.name.endswith(SEARCHED) and path.is_file():
            yield str(path), path.read_bytes()


def rows_of(url: str) -> Iterator[tuple[str, bytes]]:
    """Every row of a database, as text; which tables hold any is asked once."""
    tables = Base.metadata.sorted_tables
    with create_engine(driver_url(url), poolclass=NullPool).connect() as connection:
        held = connection.execute(select(*(exists().select_from(table).label(table.name) for table in tables))).one()
        for table in (table for table, holds in zip(tables, held, strict=True) if holds):
            rows = connection.execute(select(table)).all()
            yield f"table {table.name}", "\n".join(repr(tuple(row)) for row in rows).encode()
