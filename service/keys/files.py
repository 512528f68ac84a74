"""Secrets that an installation generates, each in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from service.keys.local import SECRET_BYTES

PEPPER_FILE = "key.pepper"
LOCAL_KEY_FILE = "local.key"
_OWNER_ONLY = 0o600


def own_secret(path: Path) -> str:
    """The secret of the file; one of 256 random bits is made where there is none. Processes that race get the same.

    Raises:
        OSError: it cannot be read or made.
    """
    if not path.exists():
        _make(path)
    return path.read_text().strip()


def _make(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_urlsafe(SECRET_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        # whole or not at all, and never in place of another process's
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
