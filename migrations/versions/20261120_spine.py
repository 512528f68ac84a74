"""The spine: uploads, models, datasets, jobs and what they produce

Revision ID: 20261120_spine
Revises: 
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261120_spine'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('datasets',
    sa.Column('id', sa.String(length=30), nullable=False),
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('name', sa.String(length=255), nullable=False),
    sa.Column('format', sa.String(length=32), nullable=False),
    sa.Column('status', sa.String(length=32), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('preprocessing', sa.JSON(), nullable=False),
    sa.Column('summary', sa.JSON(), nullable=True),
    sa.Column('problems', sa.JSON(), nullable=True),
    sa.Column('row_version', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('updated_at', sa.Double(), nullable=False),
    sa.CheckConstraint("(status = 'ready') = (summary IS NOT NULL)", name=op.f('ck_datasets_ready_has_summary')),
    sa.CheckConstraint("(status = 'rejected') = (problems IS NOT NULL)", name=op.f('ck_datasets_rejected_has_problems')),
    sa.CheckConstraint("format IN ('npz', 'safetensors')", name=op.f('ck_datasets_format')),
    sa.CheckConstraint("status IN ('validating', 'ready', 'rejected')", name=op.f('ck_datasets_status')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_datasets'))
    )
    with op.batch_alter_table('datasets') as batch_op:
        batch_op.create_index('ix_datasets_tenant_id_created_at_id', ['tenant_id', 'created_at', 'id'])

    op.create_table('idempotency_keys',
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('route', sa.String(length=64), nullable=False),
    sa.Column('key', sa.String(length=255), nullable=False),
    sa.Column('request_sha256', sa.String(length=64), nullable=False),
    sa.Column('status', sa.Integer(), nullable=False),
    sa.Column('headers', sa.JSON(), nullable=False),
    sa.Column('body', sa.JSON(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('tenant_id', 'route', 'key', name=op.f('pk_idempotency_keys'))
    )
    with op.batch_alter_table('idempotency_keys') as batch_op:
        batch_op.create_index('ix_idempotency_keys_created_at', ['created_at'])

    op.create_table('models',
    sa.Column('id', sa.String(length=30), nullable=False),
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('name', sa.String(length=255), nullable=False),
    sa.Column('format', sa.String(length=32), nullable=False),
    sa.Column('status', sa.String(length=32), nullable=False),
    sa.Column('summary', sa.JSON(), nullable=True),
    sa.Column('problems', sa.JSON(), nullable=True),
    sa.Column('row_version', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('updated_at', sa.Double(), nullable=False),
    sa.CheckConstraint("(status = 'ready') = (summary IS NOT NULL)", name=op.f('ck_models_ready_has_summary')),
    sa.CheckConstraint("(status = 'rejected') = (problems IS NOT NULL)", name=op.f('ck_models_rejected_has_problems')),
    sa.CheckConstraint("status IN ('validating', 'ready', 'rejected')", name=op.f('ck_models_status')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_models'))
    )
    with op.batch_alter_table('models') as batch_op:
        batch_op.create_index('ix_models_tenant_id_created_at_id', ['tenant_id', 'created_at', 'id'])

    op.create_table('uploads',
    sa.Column('id', sa.String(length=30), nullable=False),
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('filename', sa.String(length=255), nullable=False),
    sa.Column('kind', sa.String(length=32), nullable=True),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('expected_size_bytes', sa.BigInteger(), nullable=True),
    sa.Column('expected_sha256', sa.String(length=64), nullable=True),
    sa.Column('size_bytes', sa.BigInteger(), nullable=True),
    sa.Column('sha256', sa.String(length=64), nullable=True),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('completed_at', sa.Double(), nullable=True),
    sa.Column('expires_at', sa.Double(), nullable=False),
    sa.CheckConstraint("(state = 'complete') = (sha256 IS NOT NULL)", name=op.f('ck_uploads_complete_has_digest')),
    sa.CheckConstraint("(state = 'complete') = (size_bytes IS NOT NULL)", name=op.f('ck_uploads_complete_has_size')),
    sa.CheckConstraint("state IN ('open', 'complete')", name=op.f('ck_uploads_state')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_uploads'))
    )
    with op.batch_alter_table('uploads') as batch_op:
        batch_op.create_index('ix_uploads_state_expires_at', ['state', 'expires_at'])

    op.create_table('jobs',
    sa.Column('id', sa.String(length=30), nullable=False),
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('kind', sa.String(length=32), nullable=False),
    sa.Column('name', sa.String(length=255), nullable=True),
    sa.Column('labels', sa.JSON(), nullable=False),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('queue', sa.String(length=32), nullable=False),
    sa.Column('priority', sa.Integer(), nullable=False),
    sa.Column('model_id', sa.String(length=30), nullable=True),
    sa.Column('dataset_id', sa.String(length=30), nullable=True),
    sa.Column('calibration_dataset_id', sa.String(length=30), nullable=True),
    sa.Column('evaluation_dataset_id', sa.String(length=30), nullable=True),
    sa.Column('config', sa.JSON(), nullable=True),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('max_attempts', sa.Integer(), nullable=False),
    sa.Column('interruptions', sa.Integer(), nullable=False),
    sa.Column('worker_id', sa.String(length=255), nullable=True),
    sa.Column('lease_until', sa.Double(), nullable=True),
    sa.Column('not_before', sa.Double(), nullable=False),
    sa.Column('dispatched_at', sa.Double(), nullable=True),
    sa.Column('deadline_at', sa.Double(), nullable=True),
    sa.Column('cancel_requested_at', sa.Double(), nullable=True),
    sa.Column('stage', sa.String(length=255), nullable=True),
    sa.Column('progress', sa.JSON(), nullable=True),
    sa.Column('error', sa.JSON(), nullable=True),
    sa.Column('row_version', sa.Integer(), nullable=False),
    sa.Column('last_seq', sa.Integer(), nullable=False),
    sa.Column('request_id', sa.String(length=255), nullable=True),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('queued_at', sa.Double(), nullable=False),
    sa.Column('started_at', sa.Double(), nullable=True),
    sa.Column('finished_at', sa.Double(), nullable=True),
    sa.Column('updated_at', sa.Double(), nullable=False),
    sa.CheckConstraint("(state = 'failed') = (error IS NOT NULL)", name=op.f('ck_jobs_failed_has_error')),
    sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name=op.f('ck_jobs_running_has_lease')),
    sa.CheckConstraint("(state IN ('succeeded', 'failed', 'canceled')) = (finished_at IS NOT NULL)", name=op.f('ck_jobs_terminal_has_finished')),
    sa.CheckConstraint("kind <> 'inspect_dataset' OR dataset_id IS NOT NULL", name=op.f('ck_jobs_inspect_dataset_has_dataset')),
    sa.CheckConstraint("kind <> 'inspect_model' OR model_id IS NOT NULL", name=op.f('ck_jobs_inspect_model_has_model')),
    sa.CheckConstraint("kind <> 'quantize' OR (model_id IS NOT NULL AND calibration_dataset_id IS NOT NULL AND config IS NOT NULL)", name=op.f('ck_jobs_quantize_has_inputs')),
    sa.CheckConstraint("kind IN ('quantize', 'inspect_model', 'inspect_dataset')", name=op.f('ck_jobs_kind')),
    sa.CheckConstraint("state <> 'queued' OR cancel_requested_at IS NULL", name=op.f('ck_jobs_queued_is_not_canceling')),
    sa.CheckConstraint("state <> 'running' OR worker_id IS NOT NULL", name=op.f('ck_jobs_running_has_worker')),
    sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'canceled')", name=op.f('ck_jobs_state')),
    sa.CheckConstraint("state NOT IN ('running', 'succeeded') OR attempt >= 1", name=op.f('ck_jobs_claimed_has_attempt')),
    sa.CheckConstraint('interruptions >= 0 AND attempt >= interruptions', name=op.f('ck_jobs_attempt')),
    sa.ForeignKeyConstraint(['calibration_dataset_id'], ['datasets.id'], name=op.f('fk_jobs_calibration_dataset_id_datasets')),
    sa.ForeignKeyConstraint(['dataset_id'], ['datasets.id'], name=op.f('fk_jobs_dataset_id_datasets')),
    sa.ForeignKeyConstraint(['evaluation_dataset_id'], ['datasets.id'], name=op.f('fk_jobs_evaluation_dataset_id_datasets')),
    sa.ForeignKeyConstraint(['model_id'], ['models.id'], name=op.f('fk_jobs_model_id_models')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_jobs'))
    )
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.create_index('ix_jobs_state_deadline_at', ['state', 'deadline_at'])
        batch_op.create_index('ix_jobs_state_lease_until', ['state', 'lease_until'])
        batch_op.create_index('ix_jobs_state_not_before', ['state', 'not_before'])
        batch_op.create_index('ix_jobs_tenant_id_kind_created_at_id', ['tenant_id', 'kind', 'created_at', 'id'])

    op.create_table('model_files',
    sa.Column('model_id', sa.String(length=30), nullable=False),
    sa.Column('path', sa.String(length=255), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('is_main', sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(['model_id'], ['models.id'], name=op.f('fk_model_files_model_id_models')),
    sa.PrimaryKeyConstraint('model_id', 'path', name=op.f('pk_model_files'))
    )
    with op.batch_alter_table('model_files') as batch_op:
        batch_op.create_index('uq_model_files_main', ['model_id'], unique=True, sqlite_where=sa.text('is_main'), postgresql_where=sa.text('is_main'))

    op.create_table('artifacts',
    sa.Column('id', sa.String(length=30), nullable=False),
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('job_id', sa.String(length=30), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=32), nullable=False),
    sa.Column('filename', sa.String(length=255), nullable=False),
    sa.Column('media_type', sa.String(length=255), nullable=False),
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name=op.f('fk_artifacts_job_id_jobs')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_artifacts')),
    sa.UniqueConstraint('job_id', 'kind', name=op.f('uq_artifacts_job_id_kind'))
    )
    op.create_table('job_events',
    sa.Column('job_id', sa.String(length=30), nullable=False),
    sa.Column('seq', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('type', sa.String(length=32), nullable=False),
    sa.Column('data', sa.JSON(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.CheckConstraint('seq >= 1 AND attempt >= 0', name=op.f('ck_job_events_numbers')),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name=op.f('fk_job_events_job_id_jobs')),
    sa.PrimaryKeyConstraint('job_id', 'seq', name=op.f('pk_job_events'))
    )
    op.create_table('reports',
    sa.Column('job_id', sa.String(length=30), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('verdict', sa.String(length=32), nullable=False),
    sa.Column('body', sa.JSON(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.CheckConstraint("verdict IN ('pass', 'fail', 'none')", name=op.f('ck_reports_verdict')),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name=op.f('fk_reports_job_id_jobs')),
    sa.PrimaryKeyConstraint('job_id', name=op.f('pk_reports'))
    )


def downgrade() -> None:
    op.drop_table('reports')
    op.drop_table('job_events')
    op.drop_table('artifacts')
    with op.batch_alter_table('model_files') as batch_op:
        batch_op.drop_index('uq_model_files_main', sqlite_where=sa.text('is_main'), postgresql_where=sa.text('is_main'))

    op.drop_table('model_files')
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_index('ix_jobs_tenant_id_kind_created_at_id')
        batch_op.drop_index('ix_jobs_state_not_before')
        batch_op.drop_index('ix_jobs_state_lease_until')
        batch_op.drop_index('ix_jobs_state_deadline_at')

    op.drop_table('jobs')
    with op.batch_alter_table('uploads') as batch_op:
        batch_op.drop_index('ix_uploads_state_expires_at')

    op.drop_table('uploads')
    with op.batch_alter_table('models') as batch_op:
        batch_op.drop_index('ix_models_tenant_id_created_at_id')

    op.drop_table('models')
    with op.batch_alter_table('idempotency_keys') as batch_op:
        batch_op.drop_index('ix_idempotency_keys_created_at')

    op.drop_table('idempotency_keys')
    with op.batch_alter_table('datasets') as batch_op:
        batch_op.drop_index('ix_datasets_tenant_id_created_at_id')

    op.drop_table('datasets')
