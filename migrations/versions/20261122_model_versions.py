"""Versions of models: new weights in the graph of another model

Revision ID: 20261122_model_versions
Revises: 20261122_random_calibration
Create Date: 2026-11-22

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261122_model_versions'
down_revision = '20261122_random_calibration'
branch_labels = None
depends_on = None

_VERSION = 'ck_models_version_has_skeleton'
_SKELETON = 'fk_models_skeleton_model_id_models'


def upgrade() -> None:
    with op.batch_alter_table('models') as batch_op:
        batch_op.add_column(sa.Column('skeleton_model_id', sa.String(length=30), nullable=True))
        batch_op.add_column(sa.Column('version', sa.Integer(), server_default=sa.text('1'), nullable=False))
        batch_op.create_foreign_key(op.f(_SKELETON), 'models', ['skeleton_model_id'], ['id'])
        batch_op.create_check_constraint(op.f(_VERSION), '(version > 1) = (skeleton_model_id IS NOT NULL)')


def downgrade() -> None:
    # to the older code every model is an ONNX file: what a made one was made of goes, and all that were never made
    unmade = "SELECT id FROM models WHERE format <> 'onnx' AND status <> 'ready'"
    jobs = f'SELECT id FROM jobs WHERE model_id IN ({unmade})'
    op.execute(f'DELETE FROM job_events WHERE job_id IN ({jobs})')
    op.execute(f'DELETE FROM jobs WHERE model_id IN ({unmade})')
    op.execute(f'DELETE FROM model_files WHERE model_id IN ({unmade})')
    op.execute("DELETE FROM models WHERE format <> 'onnx' AND status <> 'ready'")
    op.execute("DELETE FROM model_files WHERE path NOT IN ('model.onnx', 'model.onnx.data') AND model_id IN"
               " (SELECT id FROM models WHERE format <> 'onnx')")
    op.execute("UPDATE models SET format = 'onnx'")
    with op.batch_alter_table('models') as batch_op:
        batch_op.drop_constraint(op.f(_VERSION), type_='check')
        batch_op.drop_constraint(op.f(_SKELETON), type_='foreignkey')
        batch_op.drop_column('version')
        batch_op.drop_column('skeleton_model_id')
