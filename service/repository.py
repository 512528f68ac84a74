"""Statements that all nouns share."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Double, select, tuple_, type_coerce, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.pagination import Position
from service.tables import Dataset, InspectionRow, Job, Model

_Row = TypeVar("_Row", Job, Model, Dataset)


def settle(
    session: Session,
    table: type[Model] | type[Dataset] | type[InspectionRow],
    which: ColumnElement[bool],
    running: str,
    values: dict[str, Any],
) -> bool:
    """Set ``values``, the new status among them, if the row's status is still ``running``. False if it had ended."""
    row = session.scalar(
        update(table)
        .where(which, table.status == running)
        .values(**values, row_version=table.row_version + 1, updated_at=db_now())
        .returning(table.id)
        .execution_options(synchronize_session=False)
    )
    return row is not None


def newest_first(
    session: Session, table: type[_Row], conditions: list[ColumnElement[bool]], after: Position | None, limit: int
) -> tuple[list[_Row], Position | None]:
    """One page of a table, newest first.

    Args:
        session: reads.
        table: which table.
        conditions: the tenant's filter and any others.
        after: last item of the page before.
        limit: items per page.

    Returns:
        The rows, and the position of the last of them if there are more.
    """
    # The exact stored number: as a datetime it would lose its last bits, and the page its place.
    created_at = type_coerce(table.created_at, Double).label("created_at_seconds")
    statement: Any = select(table, created_at).where(*conditions)
    if after is not None:
        statement = statement.where(tuple_(created_at, table.id) < tuple_(after.created_at, after.id))
    statement = statement.order_by(created_at.desc(), table.id.desc()).limit(limit + 1)
    found = session.execute(statement).all()
    rows = [row for row, _ in found[:limit]]
    if len(found) <= limit:
        return rows, None
    last, seconds = found[limit - 1]
    return rows, Position(seconds, last.id)
