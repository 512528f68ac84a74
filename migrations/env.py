"""Runs the migrations on the connection that ``service.db.migrate`` hands over: inside its transaction, or each in one
of its own.
"""

from __future__ import annotations

from alembic import context

from migrations import computed
from service.tables import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations are run by `quantmill migrate`, not by the alembic command")

computed.install()
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    # SQLite cannot alter constraints in place: tables are rebuilt.
    render_as_batch=True,
    compare_type=True,
    transactional_ddl=True,
    # No table stays locked while the next migration works; on SQLite there is a transaction around all.
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
