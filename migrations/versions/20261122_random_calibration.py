"""Quantizations without a calibration dataset, on random inputs

Revision ID: 20261122_random_calibration
Revises: 20261122_dataset_archives
Create Date: 2026-11-22

"""
from __future__ import annotations

from alembic import op

revision = '20261122_random_calibration'
down_revision = '20261122_dataset_archives'
branch_labels = None
depends_on = None

_NAME = 'ck_jobs_quantize_has_inputs'
_BEFORE = "kind <> 'quantize' OR (model_id IS NOT NULL AND calibration_dataset_id IS NOT NULL AND config IS NOT NULL)"
_AFTER = "kind <> 'quantize' OR (model_id IS NOT NULL AND config IS NOT NULL)"
# Jobs that the older code cannot have.
_WITHOUT = "kind = 'quantize' AND calibration_dataset_id IS NULL"


def upgrade() -> None:
    _rebuild_jobs(_AFTER)


def downgrade() -> None:
    for table in ('artifacts', 'reports', 'job_events'):
        op.execute(f'DELETE FROM {table} WHERE job_id IN (SELECT id FROM jobs WHERE {_WITHOUT})')
    op.execute(f'DELETE FROM jobs WHERE {_WITHOUT}')
    _rebuild_jobs(_BEFORE)


def _rebuild_jobs(inputs: str) -> None:
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f(_NAME), type_='check')
        batch_op.create_check_constraint(op.f(_NAME), inputs)
