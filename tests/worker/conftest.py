from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.services import (
    new_postgres_database,
    own_redis_database,
    postgres_trouble,
    redis_trouble,
    require,
)
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
    with Service(folder, QUANTMILL_ALLOW_PT2="true") as running:
        yield running
        assert running.stop() == 0
    assert processes_of(folder) == {}


@pytest.fixture(scope="package")
def broker() -> Iterator[str]:
    require(redis_trouble())
    with own_redis_database() as url:
        yield url


@pytest.fixture(scope="package")
def deployed(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Service]:
    """One service on PostgreSQL and Redis, likewise."""
    require(postgres_trouble())
    folder = tmp_path_factory.mktemp("deployed") / "home"
    with new_postgres_database() as database:
        with Service(folder, QUANTMILL_DATABASE_URL=database, QUANTMILL_BROKER_URL=broker) as running:
            yield running
            assert running.stop() == 0
        assert processes_of(folder) == {}
        assert not (folder / "service.db").exists(), "the embedded database was used"
        assert not (folder / "broker").exists(), "the embedded broker was used"


@pytest.fixture(scope="package")
def service(embedded: Service) -> Service:
    """The service that a module's tests are about."""
    return embedded


@pytest.fixture(scope="package")
def inputs(embedded: Service, tiny: Tiny) -> dict[str, str]:
    """The ids of model and data of ``tiny`` there."""
    return embedded.upload(tiny)
