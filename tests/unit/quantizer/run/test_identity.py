"""What results depend on."""

from __future__ import annotations

from pathlib import Path

from service.contracts import config
from worker.quantizer import emit
from worker.quantizer.run import identity


def test_the_fingerprint_covers_the_whole_engine_and_its_contracts(monkeypatch) -> None:
    read: set[Path] = set()
    original = Path.read_bytes

    def noted(self: Path) -> bytes:
        read.add(self)
        return original(self)

    monkeypatch.setattr(Path, "read_bytes", noted)
    identity.engine_fingerprint.__wrapped__()
    assert {Path(module.__file__ or "") for module in (emit, identity, config)} <= read
