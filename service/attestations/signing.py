"""The installation's signing key: made when it is first needed, kept sealed, changed by an operator."""

from __future__ import annotations

import base64

from sqlalchemy.orm import Session

from service.attestations import repository
from service.attestations.dsse import PublicKey, SigningKey
from service.attestations.errors import SigningKeyUnreadableError, SigningUnavailableError
from service.attestations.schemas import SigningKeyOut
from service.audit.service import note
from service.db import Database
from service.principal import DEFAULT_TENANT, SERVICE, Principal
from service.sealing import SealBrokenError, Sealer, Vault
from service.settings import Settings
from service.tables import SigningKeyRow

# Whoever needs the key first has it made, whatever may be its own scope.
_BY_ITSELF = Principal(DEFAULT_TENANT, SERVICE, "operator")


class KeyVault(Vault):
    """Encrypts and decrypts the installation's keys."""

    purpose = b"quantmill signing keys v1"
    about = "The signing key is"
    unavailable = SigningUnavailableError


def sealer_of(settings: Settings) -> Sealer:
    """What seals the installation's keys.

    Raises:
        SigningUnavailableError: it has no pepper.
    """
    return KeyVault.of(settings).sealer


def signing_key(database: Database, settings: Settings) -> SigningKey:
    """The key that signs now; it is made if there is none. Processes that race get the same.

    Raises:
        SigningUnavailableError: the installation has no pepper.
        SigningKeyUnreadableError: the stored key is of another pepper, or damaged.
    """
    sealer = sealer_of(settings)
    row = ensure_key(database, sealer)
    try:
        key = SigningKey.of_text(sealer.open(row.id, row.sealed))
    except SealBrokenError:
        raise SigningKeyUnreadableError(
            f"The signing key {row.id} is damaged, or of another QUANTMILL_KEY_PEPPER.",
            hint="Set the pepper that it was made with, or make another key: quantmill keys rotate-signing.",
        ) from None
    return key


def ensure_key(database: Database, sealer: Sealer) -> SigningKeyRow:
    """The row of the current key; it is made if there is none."""
    with database.read() as session:
        row = repository.current_signing_key(session)
    if row is not None:
        return row
    made = SigningKey.made()
    sealed, public = sealer.seal(made.public.id, made.text), made.public
    with database.write() as session:
        if _added(session, public, sealed, sealer.pepper_id):
            note(session, _BY_ITSELF, "signing-key.create", public.id)
        row = repository.current_signing_key(session)
    if row is None:
        raise SigningKeyUnreadableError("The signing key was retired while it was made.", hint="Ask again.")
    return row


def known_keys(database: Database, settings: Settings) -> list[SigningKeyRow]:
    """All keys, the current one first; it is made if there is none.

    Raises:
        SigningUnavailableError: the installation has no pepper.
    """
    ensure_key(database, sealer_of(settings))
    with database.read() as session:
        return repository.signing_keys(session)


def rotate(database: Database, settings: Settings, by: Principal) -> SigningKeyRow:
    """A new key in place of the current one, which stays known. Of two at once, one makes the key of both.

    Raises:
        SigningUnavailableError: the installation has no pepper.
    """
    sealer, made = sealer_of(settings), SigningKey.made()
    sealed, public = sealer.seal(made.public.id, made.text), made.public
    with database.write() as session:
        repository.retire_signing_key(session)
        if _added(session, public, sealed, sealer.pepper_id):
            note(session, by, "signing-key.rotate", public.id)
        row = repository.current_signing_key(session)
    if row is None:
        raise SigningKeyUnreadableError("The signing key was retired while it was made.", hint="Rotate again.")
    return row


def public_key(row: SigningKeyRow) -> PublicKey:
    """The half of a stored key that may be known."""
    return PublicKey(base64.b64decode(row.public_key))


def _added(session: Session, public: PublicKey, sealed: str, pepper_id: str) -> bool:
    """Store a key, unless another is the current one."""
    raw = base64.b64encode(public.raw).decode()
    return repository.add_signing_key(session, public.id, public_key=raw, sealed=sealed, pepper_id=pepper_id)


def signing_key_out(row: SigningKeyRow) -> SigningKeyOut:
    """The public half of a key."""
    return SigningKeyOut(
        id=row.id,
        algorithm="ed25519",
        public_key=public_key(row).pem,
        created_at=row.created_at,
        retired_at=row.retired_at,
    )
