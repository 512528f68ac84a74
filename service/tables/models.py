"""Models: the main ONNX file and its external data, accepted or rejected as a whole."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.contracts.model import MADE_DATA, MADE_MODEL
from service.tables.base import (
    Base,
    Bytes,
    Document,
    Id,
    Moment,
    Name,
    Sha256,
    Tenant,
    Text,
    Word,
    of_own_tenant,
    one_of,
)

NOUN_STATUSES = ("validating", "ready", "rejected")


class Model(Base):
    """An uploaded model. ``summary`` is a ModelSummary once ready, ``problems`` a list of Problem once rejected.

    ``version`` counts the models of its tenant and name. One of new weights has a ``skeleton_model_id``, whose graph it
    takes over. A ready model has a main file; one that validation makes has none before. A deleted one has no files,
    and keeps its version and its summary, for jobs that ran on it.
    """

    __tablename__ = "models"
    __table_args__ = (
        CheckConstraint(one_of("status", NOUN_STATUSES), name="status"),
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


class ModelFile(Base):
    """One file of a model; ``path`` is a plain file name, as external data names it."""

    __tablename__ = "model_files"
    __table_args__ = (
        of_own_tenant("model_files", "model_id", "models"),
        # one main file per model
        Index(
            "uq_model_files_main",
            "model_id",
            unique=True,
            sqlite_where=text("is_main"),
            postgresql_where=text("is_main"),
        ),
    )

    tenant_id: Mapped[Tenant]
    model_id: Mapped[Id] = mapped_column(primary_key=True)
    path: Mapped[Name] = mapped_column(primary_key=True)
    sha256: Mapped[Sha256]
    size_bytes: Mapped[Bytes]
    is_main: Mapped[bool]
