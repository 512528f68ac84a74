"""Attestations as a stranger sees them: by the specifications alone, with nothing of ours."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key


def opened(envelope: bytes | str, pem: str) -> dict[str, Any]:
    """The statement of an envelope whose first signature the key has made; an exception if it has not."""
    document = json.loads(envelope)
    payload = base64.b64decode(document["payload"], validate=True)
    kind = document["payloadType"].encode()
    message = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
    key = load_pem_public_key(pem.encode())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(base64.b64decode(document["signatures"][0]["sig"], validate=True), message)
    statement: dict[str, Any] = json.loads(payload)
    return statement


def flipped(data: bytes, at: int) -> bytes:
    """The same with one bit turned."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
