"""Names of models and datasets: how far their versions are counted, and which version an alias stands for."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Id, Moment, Name, Tenant, Word, of_own_tenant, one_of

NAMED_NOUNS = ("model", "dataset")


class NounName(Base):
    """A name that a tenant has given; ``last_version`` is the highest that was ever given under it, and never falls.

    Whoever makes a version, or changes an alias of the name, holds the row until the commit.
    """

    __tablename__ = "names"
    __table_args__ = (CheckConstraint(one_of("noun", NAMED_NOUNS), name="noun"),)

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    noun: Mapped[Word] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(primary_key=True)
    last_version: Mapped[int]


class Alias(Base):
    """A word that stands for one version of a name. ``row_version`` goes on where an alias of this word had ended."""

    __tablename__ = "aliases"
    __table_args__ = (
        CheckConstraint("(noun = 'model') = (model_id IS NOT NULL)", name="model_has_model"),
        CheckConstraint("(noun = 'dataset') = (dataset_id IS NOT NULL)", name="dataset_has_dataset"),
        ForeignKeyConstraint(["tenant_id", "noun", "name"], ["names.tenant_id", "names.noun", "names.name"]),
        of_own_tenant("aliases", "model_id", "models"),
        of_own_tenant("aliases", "dataset_id", "datasets"),
    )

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    noun: Mapped[Word] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(primary_key=True)
    alias: Mapped[Name] = mapped_column(primary_key=True)
    version: Mapped[int]
    model_id: Mapped[Id | None]
    dataset_id: Mapped[Id | None]
    row_version: Mapped[int]
    updated_by: Mapped[Name]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]

    @property
    def noun_id(self) -> str:
        """Of the model or dataset that it stands for."""
        found = self.model_id if self.model_id is not None else self.dataset_id
        assert found is not None  # noqa: S101 - the table has a CHECK
        return found


class AliasMove(Base):
    """One change of an alias, numbered by the ``row_version`` that it gave; one that ended it has no version."""

    __tablename__ = "alias_moves"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "noun", "name"], ["names.tenant_id", "names.noun", "names.name"]),
    )

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    noun: Mapped[Word] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(primary_key=True)
    alias: Mapped[Name] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int | None]
    noun_id: Mapped[Id | None]
    actor: Mapped[Name]
    at: Mapped[Moment]
