"""Lets tables with computed columns be rebuilt on SQLite: alembic would copy what the database computes itself."""

from __future__ import annotations

from functools import wraps

from alembic.operations.batch import ApplyBatchImpl

_grab = ApplyBatchImpl._grab_table_elements


@wraps(_grab)
def _grab_without_computed(self: ApplyBatchImpl) -> None:
    _grab(self)
    for column in self.table.c:
        if column.computed is not None:
            # as for a column that is added: it is in the new table, and nothing is copied into it
            self.column_transfers[column.name] = {}


def install() -> None:
    """Have every rebuild leave computed columns to the database."""
    ApplyBatchImpl._grab_table_elements = _grab_without_computed  # type: ignore[method-assign]
