"""Names of models and datasets: versions counted by name, aliases, tags, descriptions; what is deleted is marked

Revision ID: 20261129_names
Revises: 20261128_webhooks
Create Date: 2026-11-29

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261129_names'
down_revision = '20261128_webhooks'
branch_labels = None
depends_on = None

_NOUNS = (('model', 'models'), ('dataset', 'datasets'))
_SKELETON = 'ck_models_version_has_skeleton'
# To older code what was deleted is there, and cannot be used.
_DELETED = {
    'type': '/v1/problems#model-not-found',
    'title': 'It was deleted',
    'status': 404,
    'detail': 'It was deleted.',
    'code': 'model-not-found',
}


def upgrade() -> None:
    for _, table in _NOUNS:
        with op.batch_alter_table(table) as batch_op:
            if table == 'models':
                batch_op.drop_constraint(op.f(_SKELETON), type_='check')
            else:
                batch_op.add_column(sa.Column('version', sa.Integer(), server_default=sa.text('1'), nullable=False))
            batch_op.add_column(sa.Column('tags', sa.JSON(), server_default=sa.text("'{}'"), nullable=False))
            batch_op.add_column(sa.Column('description', sa.String(length=4000), nullable=True))
            batch_op.add_column(sa.Column('deleted_at', sa.Double(), nullable=True))
        op.execute(
            f'UPDATE {table} SET version = numbered.number FROM ('
            ' SELECT id, row_number() OVER (PARTITION BY tenant_id, name ORDER BY created_at, id) AS number'
            f' FROM {table}) AS numbered WHERE numbered.id = {table}.id'
        )
        if table == 'datasets':  # deleted before a downgrade
            op.execute("UPDATE datasets SET deleted_at = updated_at WHERE sha256 = ''")
        with op.batch_alter_table(table) as batch_op:
            batch_op.create_check_constraint(op.f(f'ck_{table}_version'), 'version >= 1')
            if table == 'datasets':
                batch_op.create_check_constraint(
                    op.f('ck_datasets_deleted_has_no_file'), "(deleted_at IS NULL) = (sha256 <> '')"
                )
            batch_op.create_unique_constraint(
                op.f(f'uq_{table}_tenant_id_name_version'), ['tenant_id', 'name', 'version']
            )
    _add_tables()
    for noun, table in _NOUNS:
        op.execute(
            'INSERT INTO names (tenant_id, noun, name, last_version)'
            f" SELECT tenant_id, '{noun}', name, max(version) FROM {table} GROUP BY tenant_id, name"
        )


def downgrade() -> None:
    for table in ('alias_moves', 'aliases', 'names'):
        op.drop_table(table)
    for _, table in _NOUNS:
        rejected = sa.text(
            f"UPDATE {table} SET status = 'rejected', summary = NULL, outline = NULL, problems = :problems"
            ' WHERE deleted_at IS NOT NULL'
        ).bindparams(sa.bindparam('problems', [_DELETED], type_=sa.JSON()))
        op.execute(rejected)
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_constraint(op.f(f'uq_{table}_tenant_id_name_version'), type_='unique')
            batch_op.drop_constraint(op.f(f'ck_{table}_version'), type_='check')
            if table == 'datasets':
                batch_op.drop_constraint(op.f('ck_datasets_deleted_has_no_file'), type_='check')
                batch_op.drop_column('version')
            for column in ('deleted_at', 'description', 'tags'):
                batch_op.drop_column(column)
    # one above the skeleton's
    op.execute(
        'WITH RECURSIVE chain(id, depth) AS ('
        ' SELECT id, 1 FROM models WHERE skeleton_model_id IS NULL UNION ALL'
        ' SELECT models.id, chain.depth + 1 FROM models JOIN chain ON models.skeleton_model_id = chain.id)'
        ' UPDATE models SET version = chain.depth FROM chain WHERE chain.id = models.id'
    )
    with op.batch_alter_table('models') as batch_op:
        batch_op.create_check_constraint(op.f(_SKELETON), '(version > 1) = (skeleton_model_id IS NOT NULL)')


def _add_tables() -> None:
    of_name = (['tenant_id', 'noun', 'name'], ['names.tenant_id', 'names.noun', 'names.name'])
    op.create_table(
        'names',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('noun', sa.String(length=32), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('last_version', sa.Integer(), nullable=False),
        sa.CheckConstraint("noun IN ('model', 'dataset')", name=op.f('ck_names_noun')),
        sa.PrimaryKeyConstraint('tenant_id', 'noun', 'name', name=op.f('pk_names')),
    )
    op.create_table(
        'aliases',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('noun', sa.String(length=32), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('alias', sa.String(length=255), nullable=False),
        sa.Column('version', sa.Integer(), nullable=False),
        sa.Column('model_id', sa.String(length=30), nullable=True),
        sa.Column('dataset_id', sa.String(length=30), nullable=True),
        sa.Column('row_version', sa.Integer(), nullable=False),
        sa.Column('updated_by', sa.String(length=255), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.CheckConstraint("(noun = 'model') = (model_id IS NOT NULL)", name=op.f('ck_aliases_model_has_model')),
        sa.CheckConstraint(
            "(noun = 'dataset') = (dataset_id IS NOT NULL)", name=op.f('ck_aliases_dataset_has_dataset')
        ),
        sa.ForeignKeyConstraint(*of_name, name=op.f('fk_aliases_tenant_id_names')),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'model_id'], ['models.tenant_id', 'models.id'], name=op.f('fk_aliases_tenant_model_id_models')
        ),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'dataset_id'],
            ['datasets.tenant_id', 'datasets.id'],
            name=op.f('fk_aliases_tenant_dataset_id_datasets'),
        ),
        sa.PrimaryKeyConstraint('tenant_id', 'noun', 'name', 'alias', name=op.f('pk_aliases')),
    )
    op.create_table(
        'alias_moves',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('noun', sa.String(length=32), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('alias', sa.String(length=255), nullable=False),
        sa.Column('seq', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('version', sa.Integer(), nullable=True),
        sa.Column('noun_id', sa.String(length=30), nullable=True),
        sa.Column('actor', sa.String(length=255), nullable=False),
        sa.Column('at', sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(*of_name, name=op.f('fk_alias_moves_tenant_id_names')),
        sa.PrimaryKeyConstraint('tenant_id', 'noun', 'name', 'alias', 'seq', name=op.f('pk_alias_moves')),
    )
