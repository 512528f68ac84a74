"""What a migration finds of older code, and leaves it; those scenes that need nothing but the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.audit.repository import BEGINNING, Link, delete_old
from service.audit.service import hash_of, link, note, verify
from service.db import Database, migrate
from service.principal import Principal
from tests.db.rows_of_then import insert_row


class Scene:
    """Rows at ``before``, at the newest schema, at ``before`` once more, and at the newest again."""

    before = ""

    def __init__(self, database: Database) -> None:
        self.database = database

    def fill(self) -> None:
        """Leave the rows of older code."""

    def at_head(self) -> None:
        """Look at them, and add those of today's code."""

    def back(self) -> None:
        """Look at what older code is left."""

    def again(self) -> None:
        """Look at what is there in the end."""

    def ask(self, statement: str, **values: Any) -> list[Any]:
        """All rows, in the order of their texts; of one column its values alone."""
        with self.database.read() as session:
            found = session.execute(text(statement), values).all()
        return sorted((row[0] if len(row) == 1 else tuple(row) for row in found), key=repr)

    @contextmanager
    def refused(self) -> Iterator[Session]:
        with pytest.raises(IntegrityError), self.database.write() as session:
            yield session


class Deeds(Scene):
    """A chain that older code has written goes on, and older code is left one with everything that is not forgotten."""

    before = "20261210_deleted_jobs"
    columns = Link._fields[:-1]  # older rows have no changes

    def fill(self) -> None:
        first = Link(1, "t", "a", "job.create", "o", "r", "", 1.5, BEGINNING, "")
        digest = self.first = hash_of(first)
        with self.database.write() as session:
            names = ", ".join(self.columns)
            values = first._replace(hash=digest)._asdict()
            session.execute(text(f"INSERT INTO audit_events ({names}) VALUES (:{names.replace(', ', ', :')})"), values)
            session.execute(text("INSERT INTO audit_heads (name, seq, hash) VALUES ('audit', 1, :hash)"), values)

    def at_head(self) -> None:
        for is_chained in (True, False):
            with self.database.write() as session:
                note(session, Principal("t", "a", "admin"), "job.cancel", "o")
            assert not is_chained or link(self.database) == 1
        self.is_whole(2)
        with self.database.write() as session:
            assert delete_old(session, 3600.0, 10) == 1

    def is_whole(self, rows: int) -> None:
        with self.database.read() as session:
            assert (verify(session).rows, verify(session).fault) == (rows, None)

    def back(self) -> None:
        previous = self.first
        for row in self.ask(f"SELECT {', '.join(self.columns)} FROM audit_events"):
            assert (row[-2], row[-1]) == (previous, hash_of(Link(*row)))
            previous = row[-1]
        assert self.ask("SELECT seq, hash FROM audit_heads") == [(3, previous)]
        url = self.database.engine.url.render_as_string(hide_password=False)
        migrate(url)
        self.is_whole(2)
        migrate(url, self.before)


class Notices(Scene):
    """PostgreSQL tells of changes from then on, and older code finds nothing of it."""

    before = "20261213_operators"

    def triggers(self) -> list[str]:
        if self.database.engine.dialect.name == "sqlite":
            return []
        told = "action_statement LIKE '%quantmill_tell%'"
        return self.ask(f"SELECT DISTINCT event_object_table FROM information_schema.triggers WHERE {told}")

    def at_head(self) -> None:
        told = ["batches", "datasets", "inspections", "jobs", "models", "workers"]
        assert self.triggers() == ([] if self.database.engine.dialect.name == "sqlite" else told)

    again = at_head

    def fill(self) -> None:
        assert self.triggers() == []

    back = fill


class Operators(Scene):
    """Who ran the installation goes on doing so; older code knows no operators."""

    before = "20261212_lease_rounds"
    scopes = "SELECT tenant_id, scope FROM api_keys"

    def fill(self) -> None:
        with self.database.write() as session:
            for key, tenant, scope in (("a", "default", "admin"), ("b", "vision", "admin"), ("c", "default", "read")):
                insert_row(session, "api_keys", id=key, tenant_id=tenant, scope=scope, secret_hash="0" * 64)

    def at_head(self) -> None:
        assert self.ask(self.scopes) == [("default", "operator"), ("default", "read"), ("vision", "admin")]

    def back(self) -> None:
        assert self.ask(self.scopes) == [("default", "admin"), ("default", "read"), ("vision", "admin")]
        with self.refused() as session:
            session.execute(text("UPDATE api_keys SET scope = 'operator'"))
