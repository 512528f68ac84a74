"""Jobs that evaluate a model: with a report, as quantize jobs have

Revision ID: 20261204_evaluations
Revises: 20261203_last_pass
Create Date: 2026-12-04

"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = '20261204_evaluations'
down_revision = '20261203_last_pass'
branch_labels = None
depends_on = None

_OTHERS = "'inspect_model', 'inspect_dataset', 'inspect_target'"
_USERS = "kind IN ('quantize', 'evaluate')"
_INPUTS = "kind <> 'evaluate' OR (model_id IS NOT NULL AND evaluation_dataset_id IS NOT NULL AND config IS NOT NULL)"
_REFERENCE = 'fk_jobs_tenant_reference_model_id_models'
_OWN_REPORT = 'fk_jobs_report_job_id_reports'
_OWN_JOB = 'fk_reports_job_id_attempt_jobs'
_REPORTED = 'uq_jobs_report_job_id_attempt'
_EVALUATIONS = "(SELECT id FROM jobs WHERE kind = 'evaluate')"


def upgrade() -> None:
    _drop_reported('quantize')
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f('ck_jobs_kind'), type_='check')
        batch_op.create_check_constraint(op.f('ck_jobs_kind'), f"kind IN ('quantize', 'evaluate', {_OTHERS})")
        batch_op.add_column(sa.Column('reference_model_id', sa.String(length=30), nullable=True))
        batch_op.create_check_constraint(op.f('ck_jobs_evaluate_has_inputs'), _INPUTS)
        batch_op.create_check_constraint(
            op.f('ck_jobs_evaluate_alone_has_reference'), "kind = 'evaluate' OR reference_model_id IS NULL"
        )
        batch_op.create_foreign_key(
            op.f(_REFERENCE), 'models', ['tenant_id', 'reference_model_id'], ['tenant_id', 'id']
        )
    _add_reported('quantize', 'evaluate')
    op.create_index(
        'ix_jobs_users',
        'jobs',
        ['tenant_id', 'created_at', 'id', 'kind'],
        sqlite_where=sa.text(_USERS),
        postgresql_where=sa.text(_USERS),
    )


def downgrade() -> None:
    op.drop_index('ix_jobs_users', table_name='jobs')
    _drop_reported('quantize', 'evaluate')
    # the older code does not know these jobs
    for part in ('artifacts', 'reports', 'job_events'):
        op.execute(f'DELETE FROM {part} WHERE job_id IN {_EVALUATIONS}')
    op.execute("DELETE FROM jobs WHERE kind = 'evaluate'")
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('SET CONSTRAINTS ALL IMMEDIATE')  # no table is altered while a deferred check of its rows is due
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f(_REFERENCE), type_='foreignkey')
        batch_op.drop_constraint(op.f('ck_jobs_evaluate_alone_has_reference'), type_='check')
        batch_op.drop_constraint(op.f('ck_jobs_evaluate_has_inputs'), type_='check')
        batch_op.drop_column('reference_model_id')
        batch_op.drop_constraint(op.f('ck_jobs_kind'), type_='check')
        batch_op.create_check_constraint(op.f('ck_jobs_kind'), f"kind IN ('quantize', {_OTHERS})")
    _add_reported('quantize')


def _computed(kinds: tuple[str, ...]) -> str:
    cases = ' '.join(f"WHEN state = 'succeeded' AND kind = {kind!r} THEN id" for kind in kinds)
    return f'CASE {cases} END'


def _read_back(kinds: tuple[str, ...]) -> dict[str, Any]:
    """SQLAlchemy reads the expression of a computed column of SQLite up to the last parenthesis of its line, beyond
    columns that were added later.
    """

    def correct(_inspector: object, _table: object, column: dict[str, Any]) -> None:
        if 'computed' in column:
            column['computed']['sqltext'] = _computed(kinds)

    return {'listeners': [('column_reflect', correct)]}


def _drop_reported(*kinds: str) -> None:
    with op.batch_alter_table('jobs', reflect_kwargs=_read_back(kinds)) as batch_op:
        batch_op.drop_constraint(op.f(_OWN_REPORT), type_='foreignkey')
    with op.batch_alter_table('reports') as batch_op:
        batch_op.drop_constraint(op.f(_OWN_JOB), type_='foreignkey')
    with op.batch_alter_table('jobs', reflect_kwargs=_read_back(kinds)) as batch_op:
        batch_op.drop_constraint(op.f(_REPORTED), type_='unique')
        batch_op.drop_column('report_job_id')


def _add_reported(*kinds: str) -> None:
    """The database computes whose report a job must have; the keys hold both to it."""
    computed = sa.Computed(_computed(kinds), persisted=True)
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.add_column(sa.Column('report_job_id', sa.String(length=30), computed, nullable=True))
        batch_op.create_unique_constraint(op.f(_REPORTED), ['report_job_id', 'attempt'])
    with op.batch_alter_table('reports') as batch_op:
        batch_op.create_foreign_key(
            op.f(_OWN_JOB), 'jobs', ['job_id', 'attempt'], ['report_job_id', 'attempt'],
            deferrable=True, initially='DEFERRED',
        )
    with op.batch_alter_table('jobs', reflect_kwargs=_read_back(kinds)) as batch_op:
        batch_op.create_foreign_key(
            op.f(_OWN_REPORT), 'reports', ['report_job_id', 'attempt'], ['job_id', 'attempt'],
            deferrable=True, initially='DEFERRED',
        )
