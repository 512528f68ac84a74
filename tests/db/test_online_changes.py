"""``quantmill migrate`` beside a service that works: what it waits for, what it keeps from others, what it would do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from typer.testing import CliRunner

from migrations import online
from service.contracts.command_errors import MigrationBlockedError
from service.db import Database, current_revision, head_revision, migrate
from service.schema import SchemaAheadError
from service.upgrades.plan import plan
from service.upgrades.text import as_text
from tests.db.rows_of_then import insert_row
from tests.support.patience import PATIENCE_SECONDS
from worker.cli import app

pytestmark = pytest.mark.both_databases

BEFORE = "20261214_release"  # the next one adds columns
PENDING = "20261215_audit_changes"


@pytest.fixture
def things(empty_url: str) -> Iterator[Database]:
    """A database with a table of two rows that are alike."""
    with closing(Database(empty_url)) as database:
        with database.write() as session:
            session.execute(text("CREATE TABLE others (id INTEGER PRIMARY KEY)"))
            session.execute(text("CREATE TABLE things (id INTEGER, other INTEGER)"))
            session.execute(text("INSERT INTO things VALUES (1, 7), (1, 7)"))
        yield database


def is_sqlite(database: Database) -> bool:
    return database.engine.dialect.name == "sqlite"


def changed(database: Database, change: Callable[[], None]) -> None:
    """Do it as a migration."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"transactional_ddl": True})
        with Operations.context(context), context.begin_transaction():
            change()
        connection.commit()


def test_an_index_that_was_broken_off_is_built_anew(things: Database) -> None:
    def build() -> None:
        online.create_index_concurrently("ux", "things", ["id"], where="id > 0", unique=True)

    with pytest.raises(IntegrityError):
        changed(things, build)
    with things.write() as session:
        if not is_sqlite(things):
            left = session.scalar(text("SELECT indisvalid FROM pg_index WHERE indexrelid = 'ux'::regclass"))
            assert left is False, "it is there, and of no use"
        place = "rowid" if is_sqlite(things) else "ctid"
        session.execute(text(f"UPDATE things SET id = 2 WHERE {place} = (SELECT max({place}) FROM things)"))
    changed(things, build)
    with pytest.raises(IntegrityError), things.write() as session:
        session.execute(text("INSERT INTO things VALUES (1, 7)"))
    changed(things, lambda: online.drop_index_concurrently("ux", "things"))
    with things.write() as session:
        session.execute(text("INSERT INTO things VALUES (1, 7)"))


def test_a_check_holds_for_new_rows_and_then_for_all(things: Database) -> None:
    def check() -> None:
        online.add_check_not_valid("ck_things_id", "things", "id < 5")

    with things.write() as session:
        session.execute(text("UPDATE things SET id = 9"))
    with pytest.raises(IntegrityError):
        changed(things, check)
    with things.write() as session:
        session.execute(text("UPDATE things SET id = 1"))
    changed(things, check)
    with pytest.raises(IntegrityError), things.write() as session:
        session.execute(text("UPDATE things SET id = 9"))
    changed(things, lambda: online.add_check_not_valid("ck_things_id", "things", "id < 10", replaces=True))
    with things.write() as session:
        session.execute(text("UPDATE things SET id = 9"))


def test_a_foreign_key_holds_for_all_rows(things: Database) -> None:
    with things.write() as session:
        session.execute(text("INSERT INTO others VALUES (7)"))
    changed(things, lambda: online.add_foreign_key_not_valid("fk_things", "things", ["other"], "others", ["id"]))
    with pytest.raises(IntegrityError), things.write() as session:
        session.execute(text("DELETE FROM others"))


@pytest.mark.slow
def test_a_migration_behind_a_long_transaction_lets_others_pass(postgres_at_before: str) -> None:
    with closing(Database(postgres_at_before)) as database, closing(Database(postgres_at_before)) as other:
        with database.engine.connect() as reader:
            reader.execute(text("SELECT count(*) FROM audit_events"))  # its lock lasts as long as the transaction
            with pytest.raises(MigrationBlockedError, match="kept a table"):
                migrate(postgres_at_before, lock_seconds=0.2, patience_seconds=0.5)
            assert current_revision(other) == BEFORE
            done = threading.Thread(target=migrate, args=(postgres_at_before,), kwargs={"lock_seconds": 0.2})
            done.start()
            for _ in range(5):
                with other.read() as session:
                    assert session.scalar(text("SELECT count(*) FROM audit_events")) == 0
            assert current_revision(other) == BEFORE
            reader.rollback()
        done.join(PATIENCE_SECONDS)
        assert current_revision(database) == head_revision()


@pytest.fixture
def postgres_at_before(empty_url: str) -> str:
    if empty_url.startswith("sqlite"):
        pytest.skip("SQLite has one lock, and waits for it")
    migrate(empty_url, BEFORE)
    return empty_url


def planned(url: str) -> dict[str, list[str]]:
    return {one.revision: [step.change.words for step in one.steps] for one in plan(url).revisions}


@pytest.mark.slow
def test_a_plan_tells_what_is_pending_and_changes_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is empty" in as_text(plan(empty_url))
    migrate(empty_url, BEFORE)
    with closing(Database(empty_url)) as database:
        with database.write() as session:
            insert_row(session, "audit_events", seq=1)
        if not is_sqlite(database):
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("ANALYZE"))
        added = [f"add column changes to {table}" for table in ("new_audit_events", "audit_events")]
        assert planned(empty_url)[PENDING] == added
        monkeypatch.setenv("QUANTMILL_DATABASE_URL", empty_url)
        answer = CliRunner().invoke(app, ["migrate", "--plan", "--json"])
        assert answer.exit_code == 0, answer.output
        step = json.loads(answer.stdout)["revisions"][0]["steps"][1]
        assert (step["table"], step["rows"], step["is_online"]) == ("audit_events", 1, True)
        told = CliRunner().invoke(app, ["migrate", "--plan"]).stdout
        assert (
            "one write lock" if is_sqlite(database) else "ACCESS EXCLUSIVE, blocks reads and writes; 1 rows"
        ) in told
        assert current_revision(database) == BEFORE
        migrate(empty_url)
        assert "nothing to do" in as_text(plan(empty_url))
        with database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '29990101_next'"))
        with pytest.raises(SchemaAheadError):
            plan(empty_url)


def test_no_plan_makes_a_file(tmp_path: Path) -> None:
    plan(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--json"], ["--plan", "--revision", "base"]])
def test_options_that_do_not_go_together(options: list[str]) -> None:
    assert CliRunner().invoke(app, ["migrate", *options]).exit_code == 2
