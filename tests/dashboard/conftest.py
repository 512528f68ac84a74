"""A front desk for tests of pages."""

from __future__ import annotations

from tests.api.conftest import app, sqlite_front

__all__ = ["app", "sqlite_front"]
