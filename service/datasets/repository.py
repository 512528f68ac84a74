"""SQL statements for datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from service import repository
from service.ids import new_id
from service.names.repository import next_version
from service.tables import Dataset


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
    return repository.add(
        session,
        Dataset,
        id=new_id("dst"),
        tenant_id=tenant_id,
        **vars(new),
        version=next_version(session, tenant_id, "dataset", new.name),
        status="validating",
    )
