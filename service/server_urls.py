"""URLs of the database's server and of the broker."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from pydantic import SecretStr


def driver_url(url: str) -> str:
    """Name psycopg 3 as the driver of a plain PostgreSQL URL."""
    for prefix in ("postgres://", "postgresql://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


def with_password(url: str, password: SecretStr | None) -> str:
    """The URL with this password instead of its own.

    Raises:
        ValueError: there is no server in the URL.
    """
    if password is None:
        return url
    parts = urlsplit(url)
    user_and_password, _, place = parts.netloc.rpartition("@")
    if not place:
        raise ValueError("a password was given, but no URL of a server that it is for")
    user = user_and_password.partition(":")[0]
    return parts._replace(netloc=f"{user}:{quote(password.get_secret_value(), safe='')}@{place}").geturl()
