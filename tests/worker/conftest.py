from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.services import new_postgres_database, own_redis_database, postgres_trouble, redis_trouble, require
from tests.support.tiny import Tiny, make_tiny
from tests.worker.running import Service, processes_of
from tests.worker.workbench import Workbench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    workbench = Workbench(tmp_path)
    yield workbench
    workbench.close()


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service on the embedded default, for all tests that do it no lasting harm."""
    folder = tmp_path_factory.mktemp("service") / "home"
    with Service(folder) as running:
        yield running
        assert running.stop() == 0
    assert processes_of(folder) == {}


@pytest.fixture(scope="package")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service on PostgreSQL and Redis, likewise."""
    require(postgres_trouble() or redis_trouble())
    folder = tmp_path_factory.mktemp("deployed") / "home"
    with new_postgres_database() as database, own_redis_database() as broker:
        with Service(folder, QUANTMILL_DATABASE_URL=database, QUANTMILL_BROKER_URL=broker) as running:
            yield running
            assert running.stop() == 0
        assert processes_of(folder) == {}
        assert not (folder / "service.db").exists(), "the embedded database was used"
        assert not (folder / "broker").exists(), "the embedded broker was used"


@pytest.fixture(scope="package")
def service(embedded: Service) -> Service:
    return embedded


@pytest.fixture(scope="package")
def inputs(embedded: Service, tiny: Tiny) -> dict[str, str]:
    return embedded.upload(tiny)
