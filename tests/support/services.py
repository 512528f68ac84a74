"""PostgreSQL and Redis for tests: real servers on loopback, or the ones that the environment names; and shell tools.

Where a server or a tool is not there, tests that need it are skipped; with CI=true they fail instead.

    QUANTMILL_TEST_POSTGRES_URL   default postgresql://root@127.0.0.1:5432/postgres; must be allowed to create databases
    QUANTMILL_TEST_REDIS_URL      default redis://127.0.0.1:6379
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import psycopg
import pytest
import redis
from psycopg import sql

POSTGRES_URL = os.environ.get("QUANTMILL_TEST_POSTGRES_URL", "postgresql://root@127.0.0.1:5432/postgres")
REDIS_URL = os.environ.get("QUANTMILL_TEST_REDIS_URL", "redis://127.0.0.1:6379").rstrip("/")
_CONNECT_SECONDS = 3


@functools.cache
def postgres_trouble() -> str | None:
    """Why there is no PostgreSQL to test with; None if there is."""
    try:
        psycopg.connect(POSTGRES_URL, connect_timeout=_CONNECT_SECONDS).close()
    except psycopg.OperationalError as error:
        return f"no PostgreSQL at {POSTGRES_URL} ({str(error).splitlines()[0]}): set QUANTMILL_TEST_POSTGRES_URL"
    return None


@functools.cache
def redis_trouble() -> str | None:
    """Why there is no Redis to test with; None if there is."""
    try:
        with redis.Redis.from_url(REDIS_URL, socket_connect_timeout=_CONNECT_SECONDS) as client:
            client.ping()
    except redis.RedisError as error:
        return f"no Redis at {REDIS_URL} ({error}): set QUANTMILL_TEST_REDIS_URL"
    return None


def tools_trouble() -> str | None:
    """Why the shell blocks of the documentation cannot be run; None if they can."""
    missing = [tool for tool in ("bash", "curl", "jq") if shutil.which(tool) is None]
    return f"no {', '.join(missing)}: the commands of README.md and docs/ are not run" if missing else None


def require(trouble: str | None) -> None:
    """Skip the test where what it needs is missing; fail it in CI."""
    if trouble is not None:
        _give_up(trouble)


def in_ci() -> bool:
    """True where a missing server or tool is a failure."""
    return os.environ.get("CI") == "true"


def _give_up(trouble: str) -> NoReturn:
    if in_ci():
        pytest.fail(trouble)
    pytest.skip(trouble)


@contextmanager
def new_postgres_database() -> Iterator[str]:
    """URL of an empty database of our own, dropped at the end."""
    name = f"quantmill_test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(POSTGRES_URL, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        # The server does not crash, so no commit has to wait for its disk.
        server.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(name)))
        try:
            yield POSTGRES_URL.rpartition("/")[0] + "/" + name
        finally:
            server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def own_redis_database() -> Iterator[str]:
    """URL of a Redis database that nobody else uses, emptied at the end."""
    with redis.Redis.from_url(REDIS_URL) as server:
        count = int(server.config_get("databases")["databases"])
    for number in range(1, count):
        url = f"{REDIS_URL}/{number}"
        with redis.Redis.from_url(url) as client:
            if client.dbsize() or not client.set("quantmill-test-owner", os.getpid(), nx=True, ex=1800):
                continue
            try:
                yield url
            finally:
                client.flushdb()
            return
    _give_up(f"every database of {REDIS_URL} is in use")
