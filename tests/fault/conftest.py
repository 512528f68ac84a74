"""Installations to break. Each test says at its end what the client's ledger says of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fault.client import Client
from tests.fault.harness.disk import SmallDisk, small_disk
from tests.fault.harness.installation import Backend, Installation
from tests.fault.harness.servers import Servers, servers_trouble
from tests.fault.ledger import Ledger, Verdict, check
from tests.support.services import require
from tests.support.tiny import Tiny, make_tiny

DISK_MIB = 48


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def servers() -> Iterator[Servers]:
    require(servers_trouble())
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="package", params=[pytest.param("files", marks=pytest.mark.long), "servers"])
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


MakeInstallation = Callable[..., Installation]


@pytest.fixture(scope="package")
def make_installation(
    backend: Backend, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path
) -> MakeInstallation:
    """Makes an installation on the back end; a context manager starts and ends it."""
    servers = request.getfixturevalue("servers") if backend == "servers" else None

    def make(**options: Any) -> Installation:
        folder = tmp_path_factory.mktemp(backend)
        return Installation(folder, servers=servers, template=_sqlite_template, **options)

    return make


@pytest.fixture(scope="package")
def disk() -> Iterator[SmallDisk | None]:
    """Where stored files and scratch folders of the shared installation lie, if one can be mounted here."""
    try:
        with small_disk(DISK_MIB) as disk:
            yield disk
    except pytest.skip.Exception:
        yield None


@pytest.fixture(scope="package")
def shared(make_installation: MakeInstallation, backend: Backend, disk: SmallDisk | None) -> Iterator[Installation]:
    names = {"QUANTMILL_STORAGE_DIR": "store", "QUANTMILL_SCRATCH_DIR": "scratch"}
    places = {} if disk is None else {name: str(disk.folder / backend / kind) for name, kind in names.items()}
    with make_installation(**places) as installation:
        yield installation


@pytest.fixture(scope="package")
def inputs(shared: Installation, tiny: Tiny) -> dict[str, str]:
    return shared.upload(tiny)


@pytest.fixture(scope="package")
def ledger(shared: Installation) -> Iterator[Ledger]:
    ledger = Ledger(shared.folder / "ledger.jsonl")
    yield ledger
    ledger.close()


@pytest.fixture
def installation(shared: Installation, inputs: dict[str, str], disk: SmallDisk | None) -> Iterator[Installation]:
    shared.heal()
    shared.begin_anew()
    yield shared
    if disk is not None:
        disk.free()
    shared.heal()


@pytest.fixture
def client(installation: Installation, ledger: Ledger, inputs: dict[str, str]) -> Iterator[Client]:
    client = Client(installation.url, ledger, inputs)
    yield client
    client.close()


@pytest.fixture
def judge(installation: Installation, ledger: Ledger) -> Callable[[], Verdict]:
    """Heals, waits until every job has ended, and asserts that nothing was lost, doubled or unexpected."""

    def verdict() -> Verdict:
        installation.heal()
        installation.quiesce()
        found = check(ledger, installation.database, installation.store)
        assert found.clean, f"{found.told()}\n{installation.tail()}"
        return found

    return verdict


@contextmanager
def told(installation: Installation, tiny: Tiny) -> Iterator[Client]:
    """A client of an installation of a test's own; nothing is lost at the end, when every job has ended."""
    ledger = Ledger(installation.folder / "ledger.jsonl")
    client = Client(installation.url, ledger, installation.upload(tiny))
    yield client
    installation.quiesce(seconds=1200)
    client.close()
    ledger.close()
    verdict = check(ledger, installation.database, installation.store)
    assert verdict.clean, verdict.told()
