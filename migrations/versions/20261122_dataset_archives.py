"""Datasets of pictures and sounds: archives, and sheets of thumbnails

Revision ID: 20261122_dataset_archives
Revises: 20261121_inspections
Create Date: 2026-11-22

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261122_dataset_archives'
down_revision = '20261121_inspections'
branch_labels = None
depends_on = None

_ARRAYS = ('npz', 'safetensors')
_ARCHIVES = ('tar', 'tar.gz', 'zip')


def upgrade() -> None:
    with op.batch_alter_table('datasets') as batch_op:
        batch_op.add_column(sa.Column('thumbnails_sha256', sa.String(length=64), nullable=True))
        _replace_formats(batch_op, (*_ARRAYS, *_ARCHIVES))


def downgrade() -> None:
    # the older code cannot read these datasets, nor what was made with them
    archives = "SELECT id FROM datasets WHERE format NOT IN ('npz', 'safetensors')"
    jobs = ' OR '.join(f'{column} IN ({archives})' for column in
                       ('dataset_id', 'calibration_dataset_id', 'evaluation_dataset_id'))
    for table in ('job_events', 'reports', 'artifacts'):
        op.execute(f'DELETE FROM {table} WHERE job_id IN (SELECT id FROM jobs WHERE {jobs})')
    op.execute(f'DELETE FROM jobs WHERE {jobs}')
    op.execute("DELETE FROM datasets WHERE format NOT IN ('npz', 'safetensors')")
    with op.batch_alter_table('datasets') as batch_op:
        _replace_formats(batch_op, _ARRAYS)
        batch_op.drop_column('thumbnails_sha256')


def _replace_formats(batch_op, formats: tuple[str, ...]) -> None:
    words = ', '.join(repr(word) for word in formats)
    batch_op.drop_constraint(op.f('ck_datasets_format'), type_='check')
    batch_op.create_check_constraint(op.f('ck_datasets_format'), f'format IN ({words})')
