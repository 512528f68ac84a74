"""What the benchmarks leave behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks import upload


def test_an_upload_that_is_ended_politely_leaves_none_of_its_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(path: Path, _: int) -> str:
        path.write_bytes(b"begun")
        os.kill(os.getpid(), signal.SIGTERM)
        return "unreached"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["upload"])
    monkeypatch.setattr(upload, "_write", end)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # else it would end the tests, where nothing is done
    try:
        with pytest.raises(SystemExit, match="143"):
            upload.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []
