from __future__ import annotations

from tests.api.conftest import app, front, sqlite_front

__all__ = ["app", "front", "sqlite_front"]
