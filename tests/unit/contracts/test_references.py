"""References by name: each is read back as it is written, and nothing else is one."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from service.contracts.base import (
    LATEST,
    MOST_ALIAS_CHARS,
    MOST_NAME_CHARS,
    MOST_REFERENCE_CHARS,
    MOST_VERSION,
    Reference,
    is_alias,
    parse,
)
from tests.support.each import each

PLAIN = st.characters(blacklist_categories=("Cc", "Cs"))
NAMES = st.one_of(
    st.text(PLAIN, min_size=1, max_size=MOST_NAME_CHARS),
    st.text("@/. %a1", min_size=1, max_size=12),  # signs, slashes, dots
)
ALIASES = st.from_regex(r"[a-z][a-z0-9]{0,9}([._-][a-z0-9]{1,9}){0,4}", fullmatch=True).filter(
    lambda word: word != LATEST
)
VERSIONS = st.integers(1, MOST_VERSION)


@given(
    st.one_of(
        st.builds(lambda name, version: Reference(name, version=version), NAMES, VERSIONS),
        st.builds(lambda name, word: Reference(name, word=word), NAMES, st.one_of(ALIASES, st.just(LATEST))),
    )
)
def test_a_reference_is_read_back(reference: Reference) -> None:
    assert parse(str(reference)) == reference
    assert len(str(reference)) <= MOST_REFERENCE_CHARS


@given(st.text(max_size=300))
def test_whatever_is_a_reference_says_so_as_it_was_written(text: str) -> None:
    found = parse(text)
    if found is None:
        return
    assert str(found) == text
    assert "@" not in str(found)[len(found.name) + 1 :]
    assert (found.version is None) != (found.word is None)


NEITHER = (
    *("", "0", "01", "-1", "+1", "1.5", "٣", str(MOST_VERSION + 1), "9" * 400),
    *("Prod", "prod ", "1prod", "a--b", ".a", "a-", "é", "a" * (MOST_ALIAS_CHARS + 1), "prod\n"),
)


NO_NAME = ("", "net", "net.1/a", "@1", "a\x00b@1", "a\nb@1", "n" * (MOST_NAME_CHARS + 1) + "@1")


@each("text", [*NO_NAME, *(f"net@{rest}" for rest in NEITHER)])
def test_what_is_no_name_or_neither_version_nor_alias_is_no_reference(text: str) -> None:
    assert parse(text) is None
    assert not is_alias(text.partition("@")[2])


@given(st.text(string.ascii_letters + string.digits + "._-@", max_size=70))
def test_an_alias_is_no_version_and_not_latest(word: str) -> None:
    if is_alias(word):
        assert not word[0].isdigit()
        assert word == word.lower() != LATEST
        assert parse(f"net@{word}") == Reference("net", word=word)
