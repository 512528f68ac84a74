"""Installations to break. Each test says at its end what the client's ledger says of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.client import Client
from tests.fault.harness.installation import BACKENDS, Backend, Installation
from tests.fault.harness.servers import Servers, servers_trouble
from tests.fault.ledger import Ledger, Verdict, check
from tests.support.services import require
from tests.support.tiny import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A tiny model and data."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def servers() -> Iterator[Servers]:
    """A PostgreSQL and a Redis of this test process."""
    require(servers_trouble())
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="package", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """SQLite and files, then PostgreSQL and Redis."""
    found: Backend = request.param
    return found


MakeInstallation = Callable[..., Installation]


@pytest.fixture(scope="package")
def make_installation(
    backend: Backend,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    _sqlite_template: Path,
) -> MakeInstallation:
    """Makes an installation on the back end; a context manager starts and ends it."""
    servers = request.getfixturevalue("servers") if backend == "servers" else None

    def make(**options: Any) -> Installation:
        folder = tmp_path_factory.mktemp(backend)
        return Installation(folder, servers=servers, template=_sqlite_template, **options)

    return make


@pytest.fixture(scope="package")
def shared(make_installation: MakeInstallation) -> Iterator[Installation]:
    """One installation for all tests that heal it."""
    with make_installation() as installation:
        yield installation


@pytest.fixture(scope="package")
def inputs(shared: Installation, tiny: Tiny) -> dict[str, str]:
    """Ids of model and data there."""
    return shared.upload(tiny)


@pytest.fixture(scope="package")
def ledger(shared: Installation) -> Iterator[Ledger]:
    """What the clients of that installation know."""
    ledger = Ledger(shared.folder / "ledger.jsonl")
    yield ledger
    ledger.close()


@pytest.fixture
def installation(shared: Installation, inputs: dict[str, str]) -> Iterator[Installation]:
    """The installation of all, healed before the test and after it."""
    shared.heal()
    shared.begin_anew()
    yield shared
    shared.heal()


@pytest.fixture
def client(installation: Installation, ledger: Ledger, inputs: dict[str, str]) -> Iterator[Client]:
    """A client with retries that keeps the ledger."""
    client = Client(installation.url, ledger, inputs)
    yield client
    client.close()


@pytest.fixture
def judge(installation: Installation, ledger: Ledger) -> Callable[[], Verdict]:
    """Heals, waits until every job has ended, and asserts that nothing was lost, doubled or unexpected."""

    def verdict(**allowed: object) -> Verdict:
        installation.heal()
        installation.quiesce()
        found = check(ledger, installation.database, installation.store, **allowed)  # type: ignore[arg-type]
        assert found.clean, f"{found.told()}\n{installation.tail()}"
        return found

    return verdict
