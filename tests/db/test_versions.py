"""Versions: counted by tenant and name, in one transaction with what they count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.datasets import repository as datasets
from service.db import Database
from service.models import repository as models
from service.tables import Dataset, Model
from tests.db.test_concurrency import THREADS, at_once

Make = Callable[[Session, str, str], "Model | Dataset"]


def make_model(session: Session, tenant: str, name: str) -> Model:
    return models.create(session, tenant, name=name, format="onnx", files=[])


def make_dataset(session: Session, tenant: str, name: str) -> Dataset:
    return datasets.create(session, tenant, datasets.NewDataset(name, "npz", "0" * 64, 1, {}))


pytestmark = [
    pytest.mark.both_databases, pytest.mark.parametrize("make", [make_model, make_dataset], ids=["model", "dataset"]),
]  # fmt: skip


def test_many_at_once_get_one_number_each(database: Database, make: Make) -> None:
    def create(_: int) -> list[int]:
        found = []
        for _round in range(3):
            with database.write() as session:
                found.append(make(session, "default", "net").version)
        return found

    taken = [version for found in at_once(THREADS, create) for version in found]
    assert sorted(taken) == list(range(1, THREADS * 3 + 1))


def test_names_and_tenants_count_for_themselves_and_what_is_rolled_back_takes_no_number(
    database: Database, make: Make
) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as session:
        make(session, "default", "a")
        raise ZeroDivisionError
    places = [("default", name) for name in ("a", "b", "a", "A", "a@1")]
    with database.write() as session:
        assert [make(session, *place).version for place in [*places, ("acme", "a")]] == [1, 1, 2, 1, 1, 1]
        second = make(session, "default", "a")
    with pytest.raises(IntegrityError), database.write() as session:
        table = type(second)
        session.execute(update(table).where(table.id == second.id).values(version=1))
