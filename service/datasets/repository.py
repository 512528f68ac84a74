"""Statements about datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from service import repository
from service.db import db_now
from service.names.kinds import DATASETS
from service.names.repository import look_up, next_version
from service.resources import new_id
from service.tables import Dataset


def settle(session: Session, dataset_id: str, **values: Any) -> bool:
    """End the validation of a dataset: set ``status`` with its summary or problems. False if it had ended before."""
    return repository.settle(session, Dataset, Dataset.id == dataset_id, "validating", values)


def find(session: Session, dataset_id: str) -> Dataset | None:
    """The dataset of any tenant, or None: for workers."""
    return session.get(Dataset, dataset_id, populate_existing=True)


@dataclass(frozen=True)
class NewDataset:
    """What a dataset is made with: columns of its row."""

    name: str
    format: str
    sha256: str
    size_bytes: int
    preprocessing: dict[str, Any]
    tags: dict[str, str] = field(default_factory=dict)
    description: str | None = None


def create(session: Session, tenant_id: str, new: NewDataset) -> Dataset:
    """Insert a dataset in validation, the next version of its name."""
    now = db_now()
    statement = (
        insert(Dataset)
        .values(
            id=new_id("dst"),
            tenant_id=tenant_id,
            **vars(new),
            version=next_version(session, tenant_id, "dataset", new.name),
            status="validating",
            row_version=1,
            created_at=now,
            updated_at=now,
        )
        .returning(Dataset)
    )
    return session.scalars(statement).one()


def resolved(
    session: Session, tenant_id: str, dataset_id: str, *, pointer: str | None = None, query: str | None = None
) -> Dataset:
    """The tenant's dataset, by its id or by a reference such as ``NAME@latest``.

    Raises:
        DatasetNotFoundError: the tenant has no such dataset; carries ``pointer`` or ``query``.
        DatasetNotReadyError, DatasetRejectedError: ``NAME@latest``, and no version is ready.
    """
    return look_up(session, DATASETS, tenant_id, dataset_id, pointer=pointer, query=query)
