"""A PostgreSQL and a Redis of the test's own, which it may stop, freeze and empty, from the system's programs."""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psycopg
import redis
from psycopg import sql

from service.db import migrate
from tests.fault.harness.processes import Process, descendants
from tests.worker.workbench import wait_for

_USERS = ("postgres", "nobody")
_TEMPLATE = "quantmill_template"
_CONNECT_SECONDS = 3
_REDIS_DATABASES = 64


@functools.cache
def postgres_bin() -> Path | None:
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    found = [home for home in homes if (home / "initdb").exists() and (home / "postgres").exists()]
    if found:
        return found[-1]
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def servers_trouble() -> str | None:
    if postgres_bin() is None:
        return "no PostgreSQL programs (initdb, postgres): faults are not tried on PostgreSQL"
    if shutil.which("redis-server") is None:
        return "no redis-server: faults are not tried on Redis"
    return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _plain_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}


class PostgresServer:
    """A PostgreSQL on loopback, without passwords, and without fsync: its process may crash, its host does not.

    Args:
        settings: of the server, in place of these, or beside them.
    """

    def __init__(self, **settings: str) -> None:
        programs = postgres_bin()
        assert programs is not None
        # Not below the test's own folder: PostgreSQL refuses to run as root, and others may not look in there.
        self._folder = Path(tempfile.mkdtemp(prefix="quantmill-pg-"))
        self.user = self._unprivileged()
        data = self._folder / "data"
        initdb = [
            str(programs / "initdb"), "-D", str(data), "-U", "quantmill", "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(initdb, user=self.user, env=_plain_environment(), capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
        self._port = free_port()
        options = {
            "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self._folder), "fsync": "off",
            "shared_buffers": "16MB", "max_connections": "200", **settings,
        }  # fmt: skip
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(self._port)]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self.process = Process(
            "postgres",
            command,
            environment=_plain_environment(),
            log=self._folder / "log",
            user=self.user,
            folder=Path("/"),
        )
        self.start()
        self._frozen: list[int] = []
        self._has_template = False
        self._only_reads = False

    def _unprivileged(self) -> str | None:
        if os.geteuid() != 0:
            return None
        for user in _USERS:
            with suppress(LookupError):
                shutil.chown(self._folder, user)
                return user
        raise AssertionError(f"PostgreSQL does not run as root, and there is none of the users {', '.join(_USERS)}")

    def url(self, database: str) -> str:
        return f"postgresql://quantmill@127.0.0.1:{self._port}/{database}"

    def new_database(self, revision: str | None = None) -> str:
        """A database of this schema; None: of the newest, copied."""
        name = f"fault_{secrets.token_hex(6)}"
        if revision is not None:
            with psycopg.connect(self.url("postgres"), autocommit=True) as server:
                server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            migrate(self.url(name), revision)
            return self.url(name)
        with psycopg.connect(self.url("postgres"), autocommit=True) as server:
            if not self._has_template:
                server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_TEMPLATE)))
                migrate(self.url(_TEMPLATE))
                self._has_template = True
            copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            server.execute(copy.format(sql.Identifier(name), sql.Identifier(_TEMPLATE)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url("postgres"), autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def start(self) -> None:
        self.process.start()

        def look() -> bool:
            assert self.process.alive, self.process.said()[-4000:]
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres"), connect_timeout=_CONNECT_SECONDS).close()
                return True
            return False

        wait_for(look, message="PostgreSQL did not start")

    def stop(self) -> None:
        self.process.send(signal.SIGQUIT)
        self.process.wait()

    def freeze(self) -> None:
        self._frozen = [self.process.pid, *descendants(self.process.pid)]
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    def only_read(self, read_only: bool) -> None:
        """Take no writes any more, as a standby does, or take them again; sessions stay."""
        word = "on" if read_only else "off"
        with psycopg.connect(self.url("postgres"), autocommit=True) as server:
            server.execute(sql.SQL("ALTER SYSTEM SET default_transaction_read_only = {}").format(sql.Literal(word)))
            server.execute("SELECT pg_reload_conf()")
        self._only_reads = read_only

        def look() -> bool:
            with psycopg.connect(self.url("postgres")) as server:
                return server.execute("SHOW default_transaction_read_only").fetchone() == (word,)

        wait_for(look, message="PostgreSQL has not read its configuration")

    def heal(self) -> None:
        self.thaw()
        if not self.process.alive:
            self.start()
        if self._only_reads:
            self.only_read(False)

    def close(self) -> None:
        self.thaw()
        if self.process.alive:
            self.stop()
        shutil.rmtree(self._folder)


class RedisServer:
    """A Redis on loopback that keeps nothing when it ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="quantmill-redis-"))
        self._port = free_port()
        command = ["redis-server", "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
        command += ["--databases", str(_REDIS_DATABASES)]
        self.process = Process("redis", command, environment=_plain_environment(), log=self._folder / "log")
        self._numbers = itertools.cycle(range(1, _REDIS_DATABASES))
        self.url = self._url(0)
        self.start()

    def _url(self, number: int) -> str:
        return f"redis://127.0.0.1:{self._port}/{number}"

    def new_database(self) -> str:
        url = self._url(next(self._numbers))
        self.empty(url)
        return url

    def client(self, url: str | None = None) -> redis.Redis:
        return redis.Redis.from_url(url or self.url, socket_connect_timeout=_CONNECT_SECONDS)

    def start(self) -> None:
        self.process.start()

        def look() -> bool:
            assert self.process.alive, self.process.said()[-4000:]
            with suppress(redis.RedisError), self.client() as client:
                return bool(client.ping())
            return False

        wait_for(look, message="Redis did not start")

    def stop(self) -> None:
        self.process.kill()

    def heal(self) -> None:
        self.process.resume()
        if not self.process.alive:
            self.start()

    def empty(self, url: str) -> None:
        with self.client(url) as client:
            client.flushdb()

    def close(self) -> None:
        self.process.close()
        shutil.rmtree(self._folder)


class Servers:
    """One of each, for all installations of a test process, one after the other."""

    def __init__(self) -> None:
        self.postgres = PostgresServer()
        self.redis = RedisServer()

    def heal(self) -> None:
        self.postgres.heal()
        self.redis.heal()

    def close(self) -> None:
        self.postgres.close()
        self.redis.close()
