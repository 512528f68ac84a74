"""Requests that the service sends to hosts of strangers: real servers that deceive, stall and flood."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trustme

from service.egress.addresses import Allowed, parse_allowed
from service.egress.errors import (
    AddressNotAllowedError,
    HostUnresolvedError,
    NoReplyError,
    PayloadTooLargeError,
    UnreachableError,
    UrlNotAllowedError,
)
from service.egress.resolving import Resolver, system_resolver
from service.egress.sending import Bounds, Egress
from tests.support.each import each
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Script, Scripted, endless, replying, scripted

HOST = "hooks.example"
fine = replying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
PATIENT = Bounds(seconds=PATIENCE_SECONDS)
SOON = Bounds(seconds=0.5)
Serve = Callable[..., Scripted]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def serve(authority: trustme.CA) -> Iterator[Serve]:
    """Starts servers with a certificate of the authority, by default for HOST; ``names=()``: without TLS."""
    with ExitStack() as stack:

        def start(script: Script = fine, *, names: tuple[str, ...] = (HOST,), host: str = "127.0.0.1"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if names else None
            if context is not None:
                authority.issue_cert(*names).configure_cert(context)
            return stack.enter_context(scripted(script, host=host, tls=context))

        yield start


def egress(
    authority: trustme.CA, allowed: str, *, resolver: Resolver | None = None, bounds: Bounds = PATIENT
) -> Egress:
    """HOST is 127.0.0.1; the authority alone is believed."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return Egress(parse_allowed(allowed), bounds, resolver or (lambda *_: ["127.0.0.1"]), context)


def ask(authority: trustme.CA, server: Scripted | int, *, method: str = "POST", scheme: str = "https", **given: Any):
    """The reply of a server of ours, which is allowed."""
    port = server if isinstance(server, int) else server.port
    request = {name: given.pop(name) for name in ("headers", "body") if name in given}
    allowed = f"{HOST}:{port}" if scheme == "https" else f"{scheme}://{HOST}:{port}"
    return egress(authority, allowed, **given).send(method, f"{scheme}://{HOST}:{port}/", **request)


def test_a_request_and_its_reply(authority: trustme.CA, serve: Serve) -> None:
    server = serve(replying(b"HTTP/1.1 201 Created\r\nX-One: 1\r\nContent-Length: 3\r\n\r\nyes"))
    out = egress(authority, f"{HOST}:{server.port}")
    reply = out.send("POST", f"https://{HOST}:{server.port}/in?a=b", headers={"Webhook-Id": "7"}, body=b'{"a": 1}')
    assert (reply.status, reply.body, reply.complete, reply.headers["x-one"]) == (201, b"yes", True, "1")
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /in?a=b HTTP/1.1"
    assert body == b'{"a": 1}'
    assert {f"Host: {HOST}:{server.port}".encode(), b"Webhook-Id: 7", b"Connection: close"} <= set(lines)
    assert not any(line.lower().startswith((b"cookie", b"authorization", b"user-agent")) for line in lines)


def test_the_name_is_resolved_once_and_the_connection_goes_there(authority: trustme.CA, serve: Serve) -> None:
    """DNS rebinding: the first answer is harmless, every later one is where the attacker wants us."""
    meant = serve(host="127.0.0.2")
    inner = socket.create_server(("127.0.0.1", meant.port))
    asked: list[str] = []

    def rebinding(host: str, _: float) -> list[str]:
        asked.append(host)
        return ["127.0.0.2"] if len(asked) == 1 else ["127.0.0.1"]

    networks = "127.0.0.2/32"
    out = egress(authority, networks, resolver=rebinding)
    out = Egress(Allowed(out.allowed.networks, ports=frozenset({(HOST, meant.port)})), PATIENT, rebinding, out.tls)
    assert out.send("POST", f"https://{HOST}:{meant.port}/").status == 200
    assert asked == [HOST]
    with pytest.raises(AddressNotAllowedError):
        out.send("POST", f"https://{HOST}:{meant.port}/")
    inner.setblocking(False)
    with pytest.raises(BlockingIOError):
        inner.accept()
    inner.close()
    assert meant.connections == 1


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_are_replies(authority: trustme.CA, serve: Serve, status: int) -> None:
    inner = serve(names=())
    for target in ("http://169.254.169.254/latest/meta-data/", f"http://127.0.0.1:{inner.port}/"):
        server = serve(replying(f"HTTP/1.1 {status} Go\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()))
        reply = ask(authority, server)
        assert (reply.status, reply.is_success) == (status, False)
        assert server.connections == 1
    assert inner.connections == 0


def test_plain_http_only_where_an_operator_says_so(authority: trustme.CA, serve: Serve) -> None:
    server = serve(names=())
    assert ask(authority, server, method="GET", scheme="http").status == 200
    with pytest.raises(UrlNotAllowedError):
        egress(authority, f"{HOST}:{server.port}").send("GET", f"http://{HOST}:{server.port}/")
    assert server.connections == 1


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("foo", "'foo' is not a URL"),
        ("hooks.example/a?token=hidden", "This is not a URL"),
        ("ftp://hooks.example/", "Only https URLs"),
    ],
)
def test_what_is_no_url_is_told_without_secrets(url: str, told: str) -> None:
    with pytest.raises(UrlNotAllowedError, match=told) as caught:
        Egress().send("POST", url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("names", [("other.example",), ("127.0.0.1",), ("*.hooks.example",), ()])
def test_the_certificate_must_be_that_of_the_name(authority: trustme.CA, serve: Serve, names: tuple[str, ...]) -> None:
    """The address is pinned, but it is the name in the URL that the certificate has to bear."""
    server = serve(names=names)
    with pytest.raises(UnreachableError):
        ask(authority, server, body=b"secret", bounds=PATIENT if names else SOON)
    assert b"secret" not in b"".join(server.requests)


def test_an_authority_that_is_not_believed(serve: Serve) -> None:
    server = serve()
    with pytest.raises(UnreachableError):
        ask(trustme.CA(), server)
    believed_by_the_system = Egress(parse_allowed(f"{HOST}:{server.port}"), PATIENT, lambda *_: ["127.0.0.1"])
    with pytest.raises(UnreachableError):
        believed_by_the_system.send("POST", f"https://{HOST}:{server.port}/")
    assert server.requests == []


HUGE = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@each(
    ("head", "part"),
    [
        (HUGE, b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        (CHUNKED, b"1\r\nx\r\n" * 1000),
        (CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (CHUNKED, b"1;" + b"e" * 5000 + b"\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", b"\x1f\x8b" * 1000),
    ],
)
def test_a_reply_without_end_is_cut_off(authority: trustme.CA, serve: Serve, head: bytes, part: bytes) -> None:
    server = serve(endless(head, part))
    reply = ask(authority, server)
    assert (reply.status, reply.complete) == (200, False)
    assert len(reply.body) <= 64 * 1024
    assert server.ended.wait(PATIENCE_SECONDS), "the connection was left open"


@each(
    ("head", "part"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 50),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-Flood: 1\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nX-Flood: ", b"x" * 65536),
        (b"HTTP/1.1 200 ", b"O" * 65536),
        (b"", b"x" * 65536),
        (b"", b"\r\n" * 1000),
        (b"", b"\x00\xff\xfe" * 1000),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"x" * 4096),
    ],
)
def test_a_head_without_end_is_no_reply(authority: trustme.CA, serve: Serve, head: bytes, part: bytes) -> None:
    server = serve(endless(head, part))
    with pytest.raises(NoReplyError):
        ask(authority, server)
    assert server.ended.wait(PATIENCE_SECONDS), "the connection was left open"


def dripping(head: bytes, part: bytes = b"x") -> Script:

    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        pause = threading.Event()
        while not pause.wait(0.02):
            connection.sendall(part)

    return script


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def test_what_is_slow_is_given_up(authority: trustme.CA, serve: Serve) -> None:
    for script in (dripping(b"HTTP/1.1 200 OK\r\nX: "), dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), silent):
        server = serve(script)
        with pytest.raises(NoReplyError):
            ask(authority, server, bounds=SOON)
        assert server.ended.wait(PATIENCE_SECONDS)
    reply = ask(authority, serve(dripping(HUGE)), bounds=SOON)
    assert (reply.status, reply.complete) == (200, False), "of a slow body the status counts"


def test_servers_that_do_not_read_or_shake_hands(authority: trustme.CA) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        large = Bounds(seconds=0.5, sent_bytes=64 * 1024**2)
        with pytest.raises(NoReplyError):
            ask(authority, port, scheme="http", bounds=large, body=b"x" * 64 * 1024**2)
        with pytest.raises(UnreachableError):
            ask(authority, port, bounds=SOON)


def test_an_address_that_answers_is_looked_for(authority: trustme.CA, serve: Serve) -> None:
    server = serve()
    assert ask(authority, server, resolver=lambda *_: ["127.0.0.9", "127.0.0.1"]).status == 200
    with pytest.raises(UnreachableError):
        ask(authority, server, resolver=lambda *_: ["127.0.0.9"])


def test_a_name_that_takes_too_long(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(PATIENCE_SECONDS) and [])
    out = egress(authority, "", resolver=system_resolver, bounds=Bounds(seconds=0.1))
    with pytest.raises(HostUnresolvedError):
        out.send("POST", f"https://{HOST}/")
    release.set()


def test_the_system_resolves_names(authority: trustme.CA, serve: Serve) -> None:
    server = serve(names=("localhost",))
    out = egress(authority, f"localhost:{server.port}", resolver=system_resolver)
    assert out.send("GET", f"https://localhost:{server.port}/").status == 200
    with pytest.raises(AddressNotAllowedError):
        egress(authority, "", resolver=system_resolver).send("GET", "https://localhost/")


def test_too_much_to_send_and_headers_that_say_something_else(authority: trustme.CA, serve: Serve) -> None:
    server = serve()
    with pytest.raises(PayloadTooLargeError):
        ask(authority, server, body=b"x" * (1024**2 + 1))
    assert server.connections == 0
    for name, value in (
        ("Host", "inner"), ("host", "inner"), ("Transfer-Encoding", "chunked"), ("X", "a\r\nY: b"), ("X\r\nY", "b"),
    ):  # fmt: skip
        with pytest.raises(UrlNotAllowedError):
            ask(authority, server, headers={name: value})
    assert not any(server.requests)


def test_proxies_of_the_environment_are_not_asked(
    authority: trustme.CA, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would resolve the name itself."""
    proxy, server = serve(names=()), serve()
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    assert ask(authority, server, method="GET").status == 200
    assert proxy.connections == 0
