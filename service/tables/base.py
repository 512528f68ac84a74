"""What all tables share: names of constraints, column types, and public identifiers in order of creation."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import JSON, BigInteger, ForeignKeyConstraint, Index, MetaData, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.db import UtcTimestamp

# Named constraints are the only ones that a migration can alter on both databases.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

ID_LENGTH = 30

Id = Annotated[str, mapped_column(String(ID_LENGTH))]
Tenant = Annotated[str, mapped_column(String(64))]
Sha256 = Annotated[str, mapped_column(String(64))]
Bytes = Annotated[int, mapped_column(BigInteger)]
Word = Annotated[str, mapped_column(String(32))]
Name = Annotated[str, mapped_column(String(255))]
Text = Annotated[str, mapped_column(String(4000))]
Moment = Annotated[datetime, mapped_column(UtcTimestamp)]
# A missing document is SQL NULL, so that CHECK constraints can tell.
Document = Annotated[Any, mapped_column(JSON(none_as_null=True))]
# Headers of W3C Trace Context: traceparent, and tracestate if there is one.
TraceContext = Annotated[dict[str, str], mapped_column(JSON(none_as_null=True))]
_Record = TypeVar("_Record", bound=BaseModel)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)


class Owned(Base):
    """Base of tables whose rows are a tenant's: every statement about one says whose, see ``owned``."""

    __abstract__ = True
    if TYPE_CHECKING:
        tenant_id: Mapped[str]


def of_own_tenant(table: str, column: str, referred: str) -> ForeignKeyConstraint:
    """``table.column`` names a row of ``referred``, which must be of the same tenant."""
    name = f"fk_{table}_tenant_{column}_{referred}"
    return ForeignKeyConstraint(["tenant_id", column], [f"{referred}.tenant_id", f"{referred}.id"], name=name)


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    """An index of the rows that meet a condition, on both databases."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


def one_of(column: str, words: tuple[str, ...]) -> str:
    """SQL condition: ``column`` holds one of ``words``."""
    return f"{column} IN ({', '.join(repr(word) for word in words)})"


def record_of(row: Base, kind: type[_Record], **given: Any) -> _Record:
    """The record by which a row is shown: what is ``given``, and of the other fields those that are columns of it."""
    shown = kind.model_fields.keys() & row.__mapper__.column_attrs.keys() - given.keys()
    return kind(**{name: getattr(row, name) for name in shown}, **given)
