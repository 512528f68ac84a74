"""How local programs find the key of a service on loopback: a file per port in the user's home.

The note names the file of the key, which only its owner can read, and says nothing of the key itself.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from service.process import is_loopback

# Of a key; here, where no table is loaded: clients read this module.
SECRET_BYTES = 32
_SCHEME_PORTS = {"http": 80, "https": 443}
_LISTENING = "0A"
log = logging.getLogger(__name__)


def announce(port: int, key_file: Path) -> None:
    """Note where the key of the service on ``port`` is. A home that cannot be written has no note."""
    note = _note(port)
    try:
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.write_text(f"{key_file}\n")
    except OSError as error:
        log.info("keys.not_announced port=%d: %s; clients need the key of %s", port, error, key_file)


def withdraw(port: int) -> None:
    """The service on ``port`` has ended."""
    try:
        _note(port).unlink(missing_ok=True)
    except OSError as error:
        log.info("keys.not_withdrawn port=%d: %s", port, error)


def key_for(url: str) -> str | None:
    """The key of the service at ``url``, if it is this user's own on this host; None: it has to be given."""
    parts = urlsplit(url)
    try:
        port = parts.port or _SCHEME_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None  # no address: whoever sends to it tells so
    # a process of another user there would be given our key by a note that was left over
    if not is_loopback(parts.hostname or "") or _host(port) is None:
        return None
    try:
        return Path(_note(port).read_text().strip()).read_text().strip() or None
    except OSError:
        return None  # there is no note, or its service is another user's


def own_services() -> dict[str, Path | None]:
    """The services that this user runs on this host and that have noted their key, by port: addresses, with the folder
    of the key, where it can be read.
    """
    try:
        names = [entry.name for entry in _notes().iterdir()]
    except OSError:
        return {}  # nothing was noted yet, or this user has no home
    ports = sorted(int(name) for name in names if name.isdecimal())
    return {f"http://{host}:{port}": _folder(port) for port in ports if (host := _host(port)) is not None}


def _folder(port: int) -> Path | None:
    try:
        return Path(_note(port).read_text().strip()).parent
    except OSError:
        return None


def _note(port: int) -> Path:
    return _notes() / str(port)


def _notes() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "quantmill" / "servers"


def _host(port: int) -> str | None:
    """The loopback address on which a process of this user listens at ``port``, if one does."""
    wanted, owner = f"{port:04X}", str(os.geteuid())
    for table, host in (("/proc/net/tcp", "127.0.0.1"), ("/proc/net/tcp6", "[::1]")):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # no such system or no such protocol here
        for fields in map(str.split, rows):
            if fields[1].rpartition(":")[2] == wanted and fields[3] == _LISTENING and fields[7] == owner:
                return host
    return None
