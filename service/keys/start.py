"""When an API must not start: without a key, or with one that can be guessed."""

from __future__ import annotations

from sqlalchemy.exc import OperationalError, ProgrammingError

from service.db import Database
from service.keys import repository
from service.keys.secrets import weakness
from service.process import is_loopback
from service.settings import Settings

_RANDOM = "openssl rand -hex 32"


def start_refusal(settings: Settings) -> str | None:
    """Why the API must not listen where it is told to, as lines for a terminal; None if it may."""
    for name, secret in (("QUANTMILL_API_KEY", settings.api_key), ("QUANTMILL_KEY_PEPPER", settings.key_pepper)):
        why = None if secret is None else weakness(secret.get_secret_value())
        if why is not None:
            return f"error: {name} is not secure: {why}.\nhint: generate a random one: {_RANDOM}"
    loopback = is_loopback(settings.host)
    if settings.open and not loopback:
        return (
            f"error: refusing to listen on {settings.host} without keys: --open is allowed on loopback "
            "only.\nhint: omit it and set QUANTMILL_API_KEY, or listen on 127.0.0.1"
        )
    if loopback and settings.embedded_database:
        return None
    has_keys = _any_key(settings)
    if has_keys and settings.key_pepper is None and not settings.embedded_database:
        return (
            "error: the database contains keys, but QUANTMILL_KEY_PEPPER is not set.\nhint: set "
            "QUANTMILL_KEY_PEPPER to the value that the keys were created with"
        )
    if loopback or settings.api_key is not None or has_keys:
        return None
    return (
        f"error: refusing to listen on {settings.host} without a key: everybody on the network could use "
        "the service.\nhint: set QUANTMILL_API_KEY, or create a key with `quantmill keys create` "
        "(before the first start, after `quantmill migrate`), or listen on 127.0.0.1"
    )


def _any_key(settings: Settings) -> bool:
    """Whether the database has a key that is good. One that is away or has no tables yet has none to be seen."""
    database = Database(settings.database_url)
    try:
        with database.read() as session:
            return repository.any_live(session)
    except (OperationalError, ProgrammingError):
        return False
    finally:
        database.close()
