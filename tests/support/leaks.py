"""Secrets of tests, and the search for them in what services leave behind: logs and databases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr
from sqlalchemy import select

from service.db import Database
from service.keys.files import LOCAL_KEY_FILE, PEPPER_FILE
from service.keys.secrets import weakness
from service.tables import Base

KINDS = {
    "QUANTMILL_API_KEY": "key of the installation",
    "QUANTMILL_KEY_PEPPER": "pepper",
    "QUANTMILL_DATABASE_URL": "password of the database",
    "QUANTMILL_BROKER_URL": "password of the broker",
}
# Any key at all, whoever made it: see service.keys.secrets.
KEY_FORM = re.compile(rb"qm_[0-9a-z]{26}_[A-Za-z0-9_-]{43}")
SEARCHED = ("*.log", "*.db", "*.db-wal")
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
    """Which kinds of secrets stand in it; never the secrets themselves."""
    found = {kind for secret, kind in _known.items() if secret in data}
    return found | ({"key"} if KEY_FORM.search(data) else set())


def refuse(places: Iterable[tuple[str, bytes]]) -> None:
    """Fail if a secret stands in one of these places, and say where and of what kind."""
    told = [f"{place}: {kind}" for place, data in places for kind in sorted(kinds_in(data))]
    assert not told, "secrets were kept:\n" + "\n".join(told)


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Logs and SQLite databases; the secrets of an installation in this folder are looked for from now on, too."""
    for name, kind in ((PEPPER_FILE, "pepper"), (LOCAL_KEY_FILE, "key of this machine")):
        for path in folder.rglob(name):
            remember(kind, path.read_text().strip())
    for pattern in SEARCHED:
        for path in folder.rglob(pattern):
            if path.is_file():
                yield str(path), path.read_bytes()


def rows_of(url: str) -> Iterator[tuple[str, bytes]]:
    """Every row of a database, as text."""
    database = Database(url)
    try:
        with database.read() as session:
            for table in Base.metadata.sorted_tables:
                rows = session.execute(select(table)).all()
                yield f"table {table.name}", "\n".join(repr(tuple(row)) for row in rows).encode()
    finally:
        database.close()
