"""How long a test waits for what must happen. It only ends a hang: a busy machine may take its time."""

from __future__ import annotations

PATIENCE_SECONDS = 240.0
