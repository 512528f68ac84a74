"""Statements about datasets."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from service import repository
from service.datasets.errors import DatasetNotFoundError
from service.db import db_now
from service.ids import is_id, new_id
from service.pagination import Position
from service.repository import outlined_page
from service.tables import Dataset
from service.tenancy import owned


def settle(session: Session, dataset_id: str, **values: Any) -> bool:
    """End the validation of a dataset: set ``status`` with its summary or problems. False if it had ended before."""
    return repository.settle(session, Dataset, Dataset.id == dataset_id, "validating", values)


def find(session: Session, dataset_id: str) -> Dataset | None:
    """The dataset of any tenant, or None: for workers."""
    return session.get(Dataset, dataset_id, populate_existing=True)


def create(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    format: str,  # noqa: A002
    sha256: str,
    size_bytes: int,
    preprocessing: dict[str, Any],
) -> Dataset:
    """Insert a dataset in validation."""
    now = db_now()
    statement = (
        insert(Dataset)
        .values(
            id=new_id("dst"),
            tenant_id=tenant_id,
            name=name,
            format=format,
            status="validating",
            sha256=sha256,
            size_bytes=size_bytes,
            preprocessing=preprocessing,
            row_version=1,
            created_at=now,
            updated_at=now,
        )
        .returning(Dataset)
    )
    return session.scalars(statement).one()


def get(session: Session, tenant_id: str, dataset_id: str, *, pointer: str | None = None) -> Dataset:
    """The tenant's dataset.

    Raises:
        DatasetNotFoundError: the tenant has no such dataset; carries ``pointer``.
    """
    statement = select(Dataset).where(Dataset.id == dataset_id, owned(Dataset, tenant_id))
    dataset = session.scalar(statement) if is_id(dataset_id, "dst") else None
    if dataset is None:
        raise DatasetNotFoundError(dataset_id, pointer=pointer)
    return dataset


def list_page(
    session: Session, tenant_id: str, *, status: str | None, after: Position | None, limit: int
) -> tuple[list[Dataset], Position | None]:
    """One page of the tenant's datasets, newest first; see ``outlined_page``."""
    conditions = [owned(Dataset, tenant_id)]
    if status is not None:
        conditions.append(Dataset.status == status)
    return outlined_page(session, Dataset, conditions, after, limit)
