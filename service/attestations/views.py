"""What signing keys look like from outside."""

from __future__ import annotations

from service.attestations.schemas import SigningKeyOut
from service.attestations.signing import public_key
from service.tables import SigningKeyRow


def signing_key_out(row: SigningKeyRow) -> SigningKeyOut:
    """The public half of a key."""
    return SigningKeyOut(
        id=row.id,
        algorithm="ed25519",
        public_key=public_key(row).pem,
        created_at=row.created_at,
        retired_at=row.retired_at,
    )
