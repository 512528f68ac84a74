"""Which URLs and addresses the service itself may call: every way to write a private one is refused."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.egress.addresses import Allowed, is_public, may_be_a_host, parse_allowed
from service.egress.errors import AddressNotAllowedError, HostUnresolvedError, UrlNotAllowedError
from service.egress.resolving import MOST_ADDRESSES, checked_addresses
from service.egress.urls import Destination, check_url
from tests.support.each import each


@each(
    ("url", "host", "port", "target", "authority"),
    [
        ("https://hooks.example.com", "hooks.example.com", 443, "/", "hooks.example.com"),
        ("HTTPS://Hooks.Example.COM./a/b?c=d%20e", "hooks.example.com", 443, "/a/b?c=d%20e", "hooks.example.com"),
        ("https://hooks.example.com:8443/#part", "hooks.example.com", 8443, "/", "hooks.example.com:8443"),
        ("https://bücher.example/", "xn--bcher-kva.example", 443, "/", "xn--bcher-kva.example"),
        ("https://93.184.216.34/x", "93.184.216.34", 443, "/x", "93.184.216.34"),
        ("https://[2606:2800:220:1::1]/x", "2606:2800:220:1::1", 443, "/x", "[2606:2800:220:1::1]"),
    ],
)
def test_plain_urls_are_taken_apart(url: str, host: str, port: int, target: str, authority: str) -> None:
    destination = check_url(url)
    assert destination == Destination("https", host, port, target)
    assert destination.authority == authority


HOOKS = "https://hooks.example.com"
REFUSED = {
    "scheme": [
        "http://hooks.example.com/", "file:///etc/passwd", "gopher://hooks.example.com/_x", "//hooks.example.com/",
        "hooks.example.com", "",
    ],
    "port": [f"{HOOKS}:22/", f"{HOOKS}:80/", f"{HOOKS}:0/"],
    "authority": [
        "https://user@hooks.example.com/", "https://user:word@hooks.example.com/", f"{HOOKS}@169.254.169.254/",
        f"{HOOKS}\\@169.254.169.254/", f"{HOOKS}%2f@evil.example/", "https://127.0.0.1%00.example.com/",
        "https://[fe80::1%25eth0]/", "https://[::1]extra/",
    ],
    "host": [
        "https:///path", "https://", "https://2130706433/", "https://0x7f000001/", "https://017700000001/",
        "https://0177.0.0.1/", "https://0x7f.0.0.1/", "https://127.1/", "https://127.0.1/", "https://127.0.0.1.5/",
        "https://example.0x/", "https://256.0.0.1/", "https://a..b/", "https://-a-.example/", "https://a_b.example/",
        f"https://{'a' * 64}.example/",
    ],
    "path": [f"{HOOKS}/ä", f"{HOOKS}/<x>"],
    "url": [
        f"{HOOKS}:99999/", "https://exa\tmple.com/", f"{HOOKS}\r\nX: y/", "https://[::ffff:300.1.1.1]/", f"{HOOKS}/a b",
        f"{HOOKS}/?a=\x00", f"{HOOKS}/{'a' * 2048}",
    ],
}  # fmt: skip


@each(("part", "url"), [(part, url) for part, urls in REFUSED.items() for url in urls])
def test_other_forms_are_refused(part: str, url: str) -> None:
    with pytest.raises(UrlNotAllowedError) as caught:
        check_url(url)
    assert (caught.value.where["part"], caught.value.status) == (part, 422)


@each("host", ["１２７.0.0.1", "127。0。0。1", "127.0.0.①", "①②⑦.⓪.⓪.①"])
def test_digits_of_other_scripts_are_seen_as_what_they_mean(host: str) -> None:
    """A resolver or a library may turn them into 127.0.0.1 after a check that did not."""
    assert check_url(f"https://{host}/").literal == ipaddress.ip_address("127.0.0.1")


@given(st.text(max_size=60))
def test_no_text_is_a_url_without_a_host_and_a_port(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.com/{text}"):
        try:
            found = check_url(url)
        except UrlNotAllowedError:
            continue
        assert found.host
        assert found.port in (443, 8443)
        assert found.host.isascii()
        assert not set(found.host + found.target) & set(" \r\n\t@#\\")


NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.1.1
    192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::93.184.216.34 ::ffff:127.0.0.1 ::ffff:93.184.216.34 ::ffff:0:127.0.0.1 64:ff9b::a00:1
    64:ff9b::5db8:d822 64:ff9b:1::1 100::1 2001::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::
    2002:a00:1:: 2002:5db8:d822:: 2620:4f:8000::1 3fff::1 5f00::1 fc00::1 fd12:3456::1 fe80::1 fec0::1 ff02::1 ffff::1
"""
PUBLIC = "8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.1 172.32.0.1 223.255.255.255 2606:4700::1111 2a00:1450::1"


@each("text", NOT_PUBLIC.split())
def test_addresses_that_are_not_public(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not is_public(address)
    with pytest.raises(AddressNotAllowedError):
        checked_addresses(check_url("https://x.example/"), Allowed(), lambda *_: [text], 1.0)
    literal = f"[{text}]" if address.version == 6 else text
    with pytest.raises(AddressNotAllowedError):
        checked_addresses(check_url(f"https://{literal}/"), Allowed(), lambda *_: pytest.fail("resolved"), 1.0)


@each("text", PUBLIC.split())
def test_addresses_that_are(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
    assert checked_addresses(check_url("https://x.example/"), Allowed(), lambda *_: [text], 1.0)


@given(st.ip_addresses())
def test_nothing_is_public_that_the_library_knows_to_be_private(address) -> None:
    if is_public(address):
        assert address.is_global
        assert not (address.is_multicast or address.is_private or address.is_reserved or address.is_loopback)
        assert may_be_a_host(address)


@given(st.ip_addresses(v=4))
def test_no_address_of_six_carries_one_of_four(address) -> None:
    number = int(address)
    carriers = (number, (0xFFFF << 32) + number, (0x64FF9B << 96) + number, (0x2002 << 112) + (number << 80))
    assert not any(is_public(ipaddress.IPv6Address(carrier)) for carrier in carriers)


@each("private", ["10.0.0.1", "::1", "::ffff:8.8.8.8"])
def test_a_split_answer_is_refused_whole(private: str) -> None:
    """One public address beside a private one: whoever connects to the first that works may end at the second."""
    for told in (["8.8.8.8", private], [private, "8.8.8.8"]):
        with pytest.raises(AddressNotAllowedError) as caught:
            checked_addresses(check_url("https://x.example/"), Allowed(), lambda *_, told=told: told, 1.0)
        assert private not in caught.value.problem().model_dump_json()


def failing(*_: object) -> list[str]:
    raise OSError("no such name")


@each("resolver", [lambda *_: [], lambda *_: ["8.8.8.8"] * (MOST_ADDRESSES + 1), lambda *_: ["what"], failing])
def test_names_without_addresses(resolver) -> None:
    with pytest.raises(HostUnresolvedError):
        checked_addresses(check_url("https://x.example/"), Allowed(), resolver, 1.0)


LIST = "10.1.0.0/16, fd00::/8, Hooks.Corp.Example:9443, http://plain.corp.example:8080, other.example"


ALLOWED = [
    ("https://a.example/", "10.1.2.3"), ("https://a.example/", "fd00::7"), ("https://10.1.2.3/", ""),
    ("https://hooks.corp.example:9443/", "192.168.0.1"), ("https://hooks.corp.example/", "127.0.0.1"),
    ("http://plain.corp.example:8080/", "192.168.0.1"), ("https://other.example/", "192.168.0.1"),
]  # fmt: skip
FORBIDDEN = [
    ("https://a.example/", "10.2.2.3"), ("https://sub.hooks.corp.example/", "192.168.0.1"),
    *(("https://hooks.corp.example/", never) for never in (
        "169.254.169.254", "::ffff:169.254.169.254", "224.0.0.1", "0.0.0.0",
    )),
]  # fmt: skip


@each(("url", "address"), [*ALLOWED, *FORBIDDEN])
def test_an_operator_allows_more(url: str, address: str) -> None:
    allowed = parse_allowed(LIST)
    destination = check_url(url, allowed)
    if (url, address) in ALLOWED:
        assert checked_addresses(destination, allowed, lambda *_: [address], 1.0)
    else:
        with pytest.raises(AddressNotAllowedError):
            checked_addresses(destination, allowed, lambda *_: [address], 1.0)


def test_and_nothing_beside_it() -> None:
    for url in (
        "http://hooks.corp.example:9443/", "http://plain.corp.example/", "https://plain.corp.example:8080/",
        "https://other.example:9443/", "https://10.1.2.3:80/",
    ):  # fmt: skip
        with pytest.raises(UrlNotAllowedError):
            check_url(url, parse_allowed(LIST))


def test_what_is_no_entry_is_told_and_an_empty_list_allows_nothing_more() -> None:
    for text in ("10.1.2.3/16", "a b", "https://x.example", "x.example/path", "x:99999", "x:0", "*"):
        with pytest.raises(ValueError, match=r"network|HOST"):
            parse_allowed(text)
    assert parse_allowed(" , ") == Allowed()
