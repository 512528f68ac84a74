"""TLS with the broker: a certificate is asked for, looked at, and has to be the host's; what doctor says of it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from kombu import pools
from kombu.exceptions import OperationalError
from kombu.utils import functional

from service.dispatch.broker import TaskSender
from service.jobs.errors import DispatchError
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from worker.celery_app import make_app
from worker.commands import doctor


@contextmanager
def tls_before(redis_url: str, certificate: trustme.LeafCert) -> Iterator[int]:
    """A port where the Redis server of the tests is reached by TLS."""
    real = urlsplit(redis_url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of the two sides has gone

    def serve(connection: socket.socket) -> None:
        try:
            outer = context.wrap_socket(connection, server_side=True)
        except OSError:
            return  # the client refused the certificate
        inner = socket.create_connection((real.hostname or "127.0.0.1", real.port or 6379), PATIENCE_SECONDS)
        opened.extend((outer, inner))
        threading.Thread(target=copy, args=(inner, outer), daemon=True).start()
        copy(outer, inner)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            opened.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in opened:
            one.close()


def take(settings: Settings) -> None:
    with make_app(settings).connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=PATIENCE_SECONDS)


def reached(url: str, folder: Path) -> bool:
    """Whether the sender of messages and the taker of them both talk to the broker."""
    settings = Settings(data_dir=folder, broker_url=url, publish_seconds=PATIENCE_SECONDS)
    sender = TaskSender(settings)
    told = []
    try:
        for act in (sender.ping, lambda: take(settings)):
            try:
                act()
            except (DispatchError, OperationalError):
                told.append(False)
            else:
                told.append(True)
    finally:
        sender.close()
        # kept for the whole process, by host and port alone
        pools.reset()
    assert len(set(told)) == 1
    return told[0]


@pytest.mark.redis
@pytest.mark.slow
def test_only_a_broker_with_a_good_certificate_is_talked_to(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # kombu waits between two tries for as long as it wants to reach somebody
    waited = [0.0]
    monkeypatch.setattr(functional, "sleep", lambda seconds: waited.append(waited[-1] + seconds))
    monkeypatch.setattr(functional, "time", lambda: waited[-1])
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    known, database = f"ssl_ca_certs={tmp_path / 'authority.pem'}", urlsplit(redis_url).path
    with tls_before(redis_url, authority.issue_cert("127.0.0.1", "localhost")) as port:
        url = f"rediss://127.0.0.1:{port}{database}"
        assert reached(f"{url}?{known}", tmp_path)
        assert not reached(url, tmp_path), "an authority that the system does not know"
        assert reached(f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false", tmp_path), "whoever says so"
    with tls_before(redis_url, other.issue_cert("127.0.0.1")) as port:
        assert not reached(f"rediss://127.0.0.1:{port}{database}?{known}", tmp_path), "another authority"
    with tls_before(redis_url, authority.issue_cert("broker.example")) as port:
        assert not reached(f"rediss://127.0.0.1:{port}{database}?{known}", tmp_path), "another host's certificate"


LOOPBACK, TABLES = "127.0.0.1:1/0", "postgresql://u@db.example/x"
BROKERS = {
    f"rediss://{LOOPBACK}?ssl_cert_reqs=none": False, f"rediss://{LOOPBACK}?ssl_cert_reqs=CERT_OPTIONAL": False,
    f"rediss://{LOOPBACK}?ssl_check_hostname=false": False, "redis://10.0.0.1:1/0": False,
    f"rediss://{LOOPBACK}": True, f"redis://{LOOPBACK}": True, "": True,
}  # fmt: skip
DATABASES = {
    TABLES: False, f"{TABLES}?sslmode=disable": False, f"{TABLES}?sslmode=require": False,
    f"{TABLES}?sslmode=verify-ca": False, f"{TABLES}?sslmode=verify-full": True, "postgresql://u@127.0.0.1/x": True,
    "postgresql://u@localhost/x": True, "postgresql:///x?host=/var/run/postgresql": True,
    "sqlite:////x/service.db": True,
}  # fmt: skip


def test_doctor_tells_of_a_broker_or_a_database_that_is_not_verified() -> None:
    assert {url: doctor.broker_protection(url)[0] for url in BROKERS} == BROKERS
    assert {url: doctor.database_protection(url)[0] for url in DATABASES} == DATABASES


def test_doctor_tells_it_without_failing_for_it(tmp_path: Path) -> None:
    """A network of one's own may be trusted: it is advice, not a fault."""
    url = "postgresql://u:pass-word@127.0.0.1:1/x?sslmode=prefer"
    broker = "rediss://:pass-word@127.0.0.1:1/0?ssl_cert_reqs=none"
    settings = Settings(data_dir=tmp_path, database_url=url, broker_url=broker)
    found = {one.name: one for one in doctor.examine(settings, engine=False)}
    assert found["broker tls"].ok
    assert "not verified" in found["broker tls"].detail
    assert not any("pass-word" in one.detail + one.hint for one in found.values())
