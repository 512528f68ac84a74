"""Shared by all tests. Says at the start of a run what will be skipped, and why."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# numpy and torch on one thread, told before they are loaded: the processes of pytest-xdist take all cores already.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Modules are compiled once, whatever the caller's shell says: the tests start hundreds of processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from service.attestations.dsse import SigningKey
from service.db import Database, migrate
from service.keys import service as key_service
from service.keys.secrets import NewKey
from service.settings import Settings
from service.tables import Base
from tests.support import in_memory, leaks, services
from tests.support.axe import axe_trouble
from tests.support.browser import browser_trouble
from tests.support.data import data_dir, missing_data
from tests.support.flower import flower_trouble
from tests.support.mlflow_server import mlflow_trouble

sys.dont_write_bytecode = False
# Tests that are not about keys need none; nothing is noted in the home of whoever runs them.
os.environ["QUANTMILL_OPEN"] = "true"
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="quantmill-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
_FOLDER = in_memory.use()
# A shell that starts the tests in the background has them ignore Ctrl-C, and every process that they start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run and machine; tmp_path is only written to, so sharing it between examples is fine.
hypothesis_settings.register_profile(
    "quantmill",
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Of the long lane: make test-long.
hypothesis_settings.register_profile("long", hypothesis_settings.get_profile("quantmill"), max_examples=200)
# More of them, others each time: pytest --hypothesis-profile=thorough
hypothesis_settings.register_profile(
    "thorough", hypothesis_settings.get_profile("quantmill"), max_examples=1000, derandomize=False
)
hypothesis_settings.load_profile("quantmill")

_TESTS = Path(__file__).parent
# Folders whose tests start services or run whole models.
_LONG_ONES = ("fault", "worker", "cli", "docs", "data", "golden", "api", "db")
_NOT_FAST = ("slow", "redis", "postgres", "data", "long")
_TEST_VARIABLES = ("QUANTMILL_DATA", "QUANTMILL_REQUIRE_DATA", "QUANTMILL_TEST_")


def pytest_report_header() -> list[str]:
    folder = data_dir()
    lines = [f"real models and data: {folder}" if folder else f"WARNING: {missing_data()}"]
    lines.append(f"temporary files: {tempfile.gettempdir()}")
    troubles = (
        services.postgres_trouble(),
        services.redis_trouble(),
        services.tools_trouble(),
        browser_trouble(),
        axe_trouble(),
        mlflow_trouble(),
        flower_trouble(),
    )
    return lines + [f"WARNING: {trouble}" for trouble in troubles if trouble is not None]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """Memory is given back, but for what a failed test has left to look at. pytest collects garbage ten times at its
    end; once is enough.
    """
    gc.collect()
    gc.freeze()
    if _FOLDER is not None and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(_FOLDER, ignore_errors=True)


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_long_ones_first(items: list[pytest.Item]) -> None:
    """The short ones fill up what is left of each process's time at the end of a run."""
    ranks = {name: rank for rank, name in enumerate(_LONG_ONES)}
    items.sort(key=lambda item: ranks.get(item.path.relative_to(_TESTS).parts[0], len(ranks)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays until the end, and a graph has very many objects: the collector looks more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20)


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_lanes(items: list[pytest.Item]) -> None:
    """Marks that follow from others. A test of ``database_url`` runs on PostgreSQL in the long lane alone, unless it
    says that databases differ there. The fast lane has one case of each unit test that no mark keeps out of it.
    """
    seen: set[str] = set()
    for item in items:
        callspec = getattr(item, "callspec", None)
        on_postgres = callspec is not None and callspec.params.get("database_url") == "postgres"
        if on_postgres and item.get_closest_marker("both_databases") is None:
            item.add_marker(pytest.mark.long)
        function = item.nodeid.partition("[")[0]
        is_unit = item.path.is_relative_to(_TESTS / "unit") and not any(map(item.get_closest_marker, _NOT_FAST))
        if is_unit and function not in seen:
            seen.add(function)
            item.add_marker(pytest.mark.fast)


def pytest_xdist_auto_num_workers() -> int:
    """Of ``-n auto``: one more than there are cores, since some tests wait for processes and servers."""
    return min(len(os.sched_getaffinity(0)) + 1, 5)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests of each, in a random order")


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_shuffled(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Folders and files stay together: what a package or module shares would be made anew for every test."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    chance = random.Random(seed)
    chance.shuffle(items)
    places: dict[Path, int] = {}
    for item in items:
        for path in (item.path, item.path.parent):
            places.setdefault(path, len(places))
    items.sort(key=lambda item: (places[item.path.parent], places[item.path]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a missing server with one line per file; in CI nothing is skipped and the fixtures fail."""
    if services.in_ci():
        return
    needs = (
        ("postgres", "_postgres_session_url", services.postgres_trouble()),
        ("redis", "redis_url", services.redis_trouble()),
        ("browser", "browser", browser_trouble()),
        ("axe", "axe", axe_trouble()),
    )
    for mark, fixture, trouble in needs:
        if trouble is None:
            continue
        for item in items:
            if item.get_closest_marker(mark) or fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=trouble))


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    """A command that runs in this process settles where messages go: to a stream that is closed after its test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if root.handlers != handlers:
        root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the caller's shell must not leak into tests."""
    for name in list(os.environ):
        known = name in _TEST_VARIABLES[:2] or name.startswith(_TEST_VARIABLES[2])
        if name.startswith("QUANTMILL_") and not known and name != "QUANTMILL_OPEN":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _secrets_are_known() -> Iterator[None]:
    """Every key that is made in this process, and every secret of its settings, is looked for where it must not be."""
    make, settle, make_signing = key_service.make_key, Settings.__init__, SigningKey.made

    def made() -> NewKey:
        key = make()
        leaks.remember("key", key.secret)
        return key

    def made_signing() -> SigningKey:
        key = make_signing()
        leaks.remember("signing key", key.text)
        return key

    def settled(self: Settings, **values: Any) -> None:
        settle(self, **values)
        held = {name: getattr(self, name.removeprefix("QUANTMILL_").lower()) for name in leaks.KINDS}
        leaks.remember_variables({name: leaks.plain(value) for name, value in held.items() if value is not None})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_service, "make_key", made)
        patched.setattr(Settings, "__init__", settled)
        patched.setattr(SigningKey, "made", made_signing)
        yield


def _is_searched(request: pytest.FixtureRequest) -> bool:
    """Whether what the test leaves is searched for secrets: of the long ones all, of the others one of eight."""
    node = request.node
    return node.get_closest_marker("long") is not None or zlib.crc32(node.nodeid.encode()) % 8 == 0


@pytest.fixture(autouse=True)
def _no_secret_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has left behind in its folder, logs and databases, holds no secret."""
    searched = "tmp_path" in request.fixturenames and _is_searched(request)
    folder = request.getfixturevalue("tmp_path") if searched else None
    yield
    if folder is not None:
        leaks.refuse(leaks.files_of(folder))


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite-template") / "service.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite database of the test's own."""
    path = tmp_path / "service.db"
    shutil.copyfile(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def _postgres_session_url() -> Iterator[str]:
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as url:
        migrate(url)
        yield url


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, _postgres_session_url: str) -> Iterator[str]:
    """A migrated PostgreSQL database, empty; of this process's own. No secret stands in it at the end of the test."""
    database = Database(_postgres_session_url)
    with database.write() as session:
        # Of a few rows each: TRUNCATE makes new files of every table and index.
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    database.close()
    yield _postgres_session_url
    if _is_searched(request):
        leaks.refuse(leaks.rows_of(_postgres_session_url))


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A Redis database that nobody else uses."""
    services.require(services.redis_trouble())
    with services.own_redis_database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database; the test runs once on SQLite and once on PostgreSQL."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """As ``database_url``, open."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    """Settings of an isolated service in ``tmp_path``, without a broker."""
    return Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0)
