"""What the service needs to do its work, looked at one by one."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import SQLAlchemyError

from service.db import current_revision, head_revision
from service.deps import Desk
from service.jobs.errors import DispatchError

Outcome = Literal["ok", "degraded", "failed"]
log = logging.getLogger(__name__)


class NotReadyError(Exception):
    """A check found something that keeps the service from working."""


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``degraded`` does not keep the service from taking work."""

    name: str
    outcome: Outcome
    detail: str


def check_all(desk: Desk) -> list[Check]:
    """Look at everything; never raises for what it looks for."""
    checks = [
        _check("database", lambda: _database(desk)),
        _check("storage", lambda: _storage(desk)),
        _check("disk", lambda: _disk(desk)),
    ]
    return [*checks, _broker(desk)]


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except (NotReadyError, SQLAlchemyError, OSError) as error:
        log.warning("readiness.failed check=%s: %s", name, error)
        # what a driver says may name hosts and users; only our own words go out
        detail = str(error) if isinstance(error, NotReadyError) else f"{type(error).__name__}; see the log"
        return Check(name, "failed", detail)


def _database(desk: Desk) -> str:
    current, head = current_revision(desk.database), head_revision()
    if current != head:
        raise NotReadyError(f"the schema is at {current}, this version needs {head}: run `quantmill migrate`")
    return f"schema {current}"


def _storage(desk: Desk) -> str:
    with tempfile.NamedTemporaryFile(dir=desk.store.incoming, suffix=".probe") as probe:
        probe.write(b"probe")
        probe.flush()
        os.fsync(probe.fileno())
    return "writable"


def _disk(desk: Desk) -> str:
    free = desk.store.free_bytes()
    if free < desk.settings.min_free_bytes:
        raise NotReadyError(f"{free} bytes free, at least {desk.settings.min_free_bytes} are needed")
    return f"{free} bytes free"


def _broker(desk: Desk) -> Check:
    try:
        desk.dispatcher.ping()
    except DispatchError as error:
        log.warning("readiness.degraded check=broker: %s", error.detail)
        return Check("broker", "degraded", "not reachable: jobs are accepted and sent to workers once it is back")
    return Check("broker", "ok", "reachable")
