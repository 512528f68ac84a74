"""Tables of models and datasets, their names, and inspections."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.contracts.model import MADE_DATA, MADE_MODEL
from service.tables.base import (
    Bytes,
    Document,
    Id,
    Moment,
    Name,
    Owned,
    Sha256,
    Tenant,
    Text,
    Word,
    of_own_tenant,
    one_of,
    partial_index,
)

UPLOAD_STATUSES = ("validating", "ready", "rejected")


class Model(Owned):
    """An uploaded model. ``summary`` is a ModelSummary once ready, ``problems`` a list of Problem once rejected.

    ``version`` counts the models of its tenant and name. One of new weights has a ``skeleton_model_id``, whose graph it
    takes over. A ready model has a main file; one that validation makes has none before. A deleted one has no files,
    and keeps its version and its summary, for jobs that ran on it.
    """

    __tablename__ = "models"
    __table_args__ = (
        CheckConstraint(one_of("status", UPLOAD_STATUSES), name="status"),
        CheckConstraint("version >= 1", name="version"),
        CheckConstraint("(status = 'ready') = (summary IS NOT NULL)", name="ready_has_summary"),
        CheckConstraint("(status = 'rejected') = (problems IS NOT NULL)", name="rejected_has_problems"),
        UniqueConstraint("tenant_id", "id"),
        UniqueConstraint("tenant_id", "name", "version"),
        of_own_tenant("models", "skeleton_model_id", "models"),
        Index("ix_models_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name]
    format: Mapped[Word]
    skeleton_model_id: Mapped[Id | None]
    version: Mapped[int] = mapped_column(server_default=text("1"))
    status: Mapped[Word]
    tags: Mapped[Document] = mapped_column(server_default=text("'{}'"))
    description: Mapped[Text | None]
    summary: Mapped[Document | None]
    # The summary without what grows with the graph, for lists; null in rows that older code has written.
    outline: Mapped[Document | None]
    problems: Mapped[Document | None]
    # Why the installation keeps it in validation: code, message, hint.
    waiting: Mapped[Document | None]
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
    deleted_at: Mapped[Moment | None]
    files: Mapped[list[ModelFile]] = relationship(lazy="selectin", order_by="ModelFile.path")

    @property
    def graph_files(self) -> list[ModelFile]:
        """The ONNX file with its external data, without what they were made of."""
        return [file for file in self.files if self.format == "onnx" or file.path in (MADE_MODEL, MADE_DATA)]

    @property
    def main_file(self) -> ModelFile:
        """The ONNX file itself."""
        return next(file for file in self.files if file.is_main)


class ModelFile(Owned):
    """One file of a model; ``path`` is a plain file name, as external data names it."""

    __tablename__ = "model_files"
    __table_args__ = (
        of_own_tenant("model_files", "model_id", "models"),
        # one main file per model
        partial_index("uq_model_files_main", "model_id", where="is_main", unique=True),
    )

    tenant_id: Mapped[Tenant]
    model_id: Mapped[Id] = mapped_column(primary_key=True)
    path: Mapped[Name] = mapped_column(primary_key=True)
    sha256: Mapped[Sha256]
    size_bytes: Mapped[Bytes]
    is_main: Mapped[bool]


DATASET_FORMATS = ("npz", "safetensors", "tar", "tar.gz", "zip")


class Dataset(Owned):
    """An uploaded dataset. ``summary`` is a DatasetSummary once ready, ``problems`` a list of Problem once rejected.

    ``version`` counts the datasets of its tenant and name. ``thumbnails_sha256`` names the stored sheet of small
    pictures, where the dataset holds pictures. A deleted one names no file: its ``sha256`` is empty.
    """

    __tablename__ = "datasets"
    __table_args__ = (
        CheckConstraint(one_of("status", UPLOAD_STATUSES), name="status"),
        CheckConstraint(one_of("format", DATASET_FORMATS), name="format"),
        CheckConstraint("(status = 'ready') = (summary IS NOT NULL)", name="ready_has_summary"),
        CheckConstraint("(status = 'rejected') = (problems IS NOT NULL)", name="rejected_has_problems"),
        CheckConstraint("version >= 1", name="version"),
        CheckConstraint("(deleted_at IS NULL) = (sha256 <> '')", name="deleted_has_no_file"),
        UniqueConstraint("tenant_id", "id"),
        UniqueConstraint("tenant_id", "name", "version"),
        Index("ix_datasets_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name]
    version: Mapped[int] = mapped_column(server_default=text("1"))
    format: Mapped[Word]
    status: Mapped[Word]
    tags: Mapped[Document] = mapped_column(server_default=text("'{}'"))
    description: Mapped[Text | None]
    sha256: Mapped[Sha256]
    size_bytes: Mapped[Bytes]
    preprocessing: Mapped[Document]
    summary: Mapped[Document | None]
    # The summary without what grows with the data, for lists; null in rows that older code has written.
    outline: Mapped[Document | None]
    problems: Mapped[Document | None]
    # Why the installation keeps it in validation: code, message, hint.
    waiting: Mapped[Document | None]
    thumbnails_sha256: Mapped[Sha256 | None]
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
    deleted_at: Mapped[Moment | None]


NAMED_KINDS = ("model", "dataset")


class NounName(Owned):
    """A name that a tenant has given; ``last_version`` is the highest that was ever given under it, and never falls.

    Whoever makes a version, or changes an alias of the name, holds the row until the commit.
    """

    __tablename__ = "names"
    __table_args__ = (CheckConstraint(one_of("noun", NAMED_KINDS), name="noun"),)

    tenant_id: Mapped[Tenant] = mapped_column(primary_key=True)
    noun: Mapped[Word] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(primary_key=True)
    last_version: Mapped[int]


class Alias(Owned):
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


class AliasMove(Owned):
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


INSPECTION_STATUSES = ("running", "ready", "failed")


class InspectionRow(Owned):
    """One inspection. ``result`` is an Inspection once ready, ``problem`` a Problem once failed."""

    __tablename__ = "inspections"
    __table_args__ = (
        CheckConstraint(one_of("status", INSPECTION_STATUSES), name="status"),
        CheckConstraint("(status = 'ready') = (result IS NOT NULL)", name="ready_has_result"),
        CheckConstraint("(status = 'failed') = (problem IS NOT NULL)", name="failed_has_problem"),
        of_own_tenant("inspections", "model_id", "models"),
        of_own_tenant("inspections", "job_id", "jobs"),
        # a failed one may be tried again
        partial_index(
            "uq_inspections_model_id_config_sha256",
            "model_id",
            "config_sha256",
            where="status <> 'failed'",
            unique=True,
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    model_id: Mapped[Id]
    job_id: Mapped[Id] = mapped_column(unique=True)
    config: Mapped[Document]
    config_sha256: Mapped[Sha256]
    status: Mapped[Word]
    result: Mapped[Document | None]
    problem: Mapped[Document | None]
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
