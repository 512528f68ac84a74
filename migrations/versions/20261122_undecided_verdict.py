"""Reports whose verdict is undecided

Revision ID: 20261122_undecided_verdict
Revises: 20261122_model_versions
Create Date: 2026-11-22

"""
from __future__ import annotations

from alembic import op

revision = '20261122_undecided_verdict'
down_revision = '20261122_model_versions'
branch_labels = None
depends_on = None

_NAME = 'ck_reports_verdict'
_BEFORE = "verdict IN ('pass', 'fail', 'none')"
_AFTER = "verdict IN ('pass', 'fail', 'undecided', 'none')"


def upgrade() -> None:
    _rebuild_reports(_AFTER)


def downgrade() -> None:
    # What the older code cannot have: nobody may take such a model for one that passed.
    op.execute("UPDATE reports SET verdict = 'fail' WHERE verdict = 'undecided'")
    _rebuild_reports(_BEFORE)


def _rebuild_reports(verdict: str) -> None:
    with op.batch_alter_table('reports') as batch_op:
        batch_op.drop_constraint(op.f(_NAME), type_='check')
        batch_op.create_check_constraint(op.f(_NAME), verdict)
