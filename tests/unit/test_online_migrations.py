"""Migrations of a service in use keep nobody from its tables: read off the statements that PostgreSQL would get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import op
from alembic.script import Script

from migrations import online
from service.upgrades.plan import PlannedRevision, pending, planned
from service.upgrades.statements import change_of
from tests.support.each import each

# Older ones were run before there was the rule.
SINCE = "20261216"


def troubles(revision: PlannedRevision) -> list[str]:
    """Why the service would not go on beside the migration as if nothing happened."""
    found = ["it reads rows: what it does cannot be told before"] if revision.reads_rows else []
    locked = None
    for step in revision.steps:
        change = step.change
        if not change.is_online:
            found.append(f"{change.words}: not while the table is in use")
        elif locked is not None and change.work != "none" and not step.own_transaction:
            found.append(f"{change.words}: {locked} stays locked until then")
        if change.blocks != "nothing" and not step.own_transaction:
            locked = change.table
    inside = [step.change for step in revision.steps if not step.own_transaction]
    if len(inside) < len(revision.steps) and not all(change.is_repeatable for change in inside):
        found.append("broken off and tried again, it would do the first part twice")
    return found


def test_new_migrations_keep_nobody_from_a_table() -> None:
    revisions = planned(pending(None))
    new = [revision for revision in revisions if revision.revision >= SINCE]
    assert new
    assert {revision.revision: found for revision in new if (found := troubles(revision))} == {}


def of(*changes: Any) -> PlannedRevision:
    """A migration of such calls."""

    def upgrade() -> None:
        for change in changes:
            change()

    module: Any = SimpleNamespace(
        upgrade=upgrade, __doc__="Of a test", revision="29990101_of_a_test", down_revision=None, __name__="of_a_test"
    )
    (found,) = planned([Script(module, module.revision, "of_a_test.py")])
    return found


def column(name: str, **options: Any) -> Any:
    return lambda: op.add_column("jobs", sa.Column(name, sa.Integer(), **options))


def index(**options: Any) -> Any:
    return lambda: op.create_index("ix_jobs_a", "jobs", ["a"], **options)


FILLED = "UPDATE jobs SET a = 1"


def column_filled() -> None:
    with online.beside_others():
        op.execute(FILLED)


ANEW = "DROP CONSTRAINT IF EXISTS c, ADD CONSTRAINT c CHECK (a)"
CHECK = "ALTER TABLE jobs ADD CONSTRAINT c CHECK (a > 0)"
GOOD: dict[str, tuple[Any, ...]] = {
    "column": (column("a"), column("b", nullable=False, server_default="0")),
    "rows": (lambda: op.execute(FILLED),),
    "again": (lambda: op.add_column("jobs", sa.Column("a", sa.Integer()), if_not_exists=True), column_filled),
    "table": (
        lambda: op.create_table("new", sa.Column("id", sa.Integer())),
        lambda: op.create_index("ix_new_id", "new", ["id"]),
    ),
    "index": (lambda: online.create_index_concurrently("ix_jobs_a", "jobs", ["a"], where="a > 0", unique=True),),
    "expression": (
        lambda: online.create_index_concurrently("ix", "jobs", [sa.text("(a::jsonb) jsonb_path_ops")], using="gin"),
    ),
    "check": (lambda: online.add_check_not_valid("ck_jobs_a", "jobs", "a > 0"),),
    "foreign key": (
        lambda: online.add_foreign_key_not_valid("fk", "jobs", ["a"], "models", ["id"], on_delete="CASCADE"),
    ),
}
BAD: dict[str, tuple[Any, ...]] = {
    "an index that blocks writes": (index(),),
    "a check that reads all rows": (lambda: op.execute(CHECK),),
    "a foreign key that looks up all rows": (
        lambda: op.create_foreign_key("fk", "jobs", "models", ["a"], ["id"]),
    ),
    "a key": (lambda: op.create_unique_constraint("uq", "jobs", ["a"]),),
    "a column that must be given": (column("a", nullable=False),),
    "a column that is computed": (column("a", **{"server_default": sa.text("random()")}),),
    "a column that goes": (lambda: op.drop_column("jobs", "a"),),
    "another name": (lambda: op.alter_column("jobs", "a", new_column_name="b"),),
    "another type": (lambda: op.alter_column("jobs", "a", type_=sa.BigInteger()),),
    "no nulls": (lambda: op.alter_column("jobs", "a", nullable=False),),
    "a table that goes": (lambda: op.drop_table("jobs"),),
    "what nobody knows": (lambda: op.execute("CLUSTER jobs USING ix_jobs_a"),),
    "rows while the table is locked": (column("a"), lambda: op.execute(FILLED)),
    "what would be done twice": (column("a"), *GOOD["index"]),
    "what depends on rows": (lambda: op.get_bind().execute(sa.text("SELECT 1")),),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_done(name: str) -> None:
    found = of(*GOOD[name])
    assert troubles(found) == []
    assert found.steps


@pytest.mark.parametrize("name", BAD)
def test_what_may_not(name: str) -> None:
    assert len(troubles(of(*BAD[name]))) == 1


@each(
    ("statement", "lock", "work"),
    [
        ("ALTER TABLE jobs ADD COLUMN a JSON", "ACCESS EXCLUSIVE", "none"),
        ("ALTER TABLE jobs VALIDATE CONSTRAINT c", "SHARE UPDATE EXCLUSIVE", "scan"),
        (
            "ALTER TABLE jobs DROP CONSTRAINT IF EXISTS c, ADD CONSTRAINT c CHECK (a) NOT VALID",
            "ACCESS EXCLUSIVE",
            "none",
        ),
        ("ALTER TABLE jobs SET (fillfactor = 80)", "SHARE UPDATE EXCLUSIVE", "none"),
        ("CREATE INDEX CONCURRENTLY i ON jobs (a)", "SHARE UPDATE EXCLUSIVE", "index beside writes"),
        ("ALTER TABLE jobs ADD COLUMN a INT GENERATED ALWAYS AS (1) STORED", "ACCESS EXCLUSIVE", "rewrite"),
        ("CREATE TRIGGER t AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION f()", "SHARE ROW EXCLUSIVE", "none"),
    ],
)
def test_locks(statement: str, lock: str, work: str) -> None:
    found = change_of(statement)
    assert found is not None
    assert (found.table, found.lock, found.work, found.known) == ("jobs", lock, work, True)
