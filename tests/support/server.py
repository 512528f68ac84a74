"""A real API process for tests, on a socket of ours, so that its port is known before it starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from service.settings import Settings
from tests.support import leaks
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
_PASSED_ON = (
    "data_dir", "database_url", "broker_url", "min_free_bytes", "max_upload_bytes", "ping_seconds", "max_body_bytes",
    "upload_idle_seconds", "api_lock_seconds", "api_answer_seconds", "publish_seconds", "connection_idle_seconds",
    "body_seconds", "max_connections", "max_connections_per_address", "request_seconds", "reading_seconds",
    "cors_origins",
)  # fmt: skip
_CODE = "import sys; from service.cli import api; api(fd=int(sys.argv[1]))"


class ApiProcess:
    """``quantmill api`` with these settings; may be killed and started again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.log = settings.data_dir / "api.log"
        settings.make_folders()
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        chosen = {f"QUANTMILL_{name.upper()}": str(getattr(self.settings, name)) for name in _PASSED_ON}
        if self.settings.api_key is not None:
            chosen["QUANTMILL_API_KEY"] = self.settings.api_key.get_secret_value()
        leaks.remember_variables(chosen)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(self._listener.fileno())],
                env={**os.environ, **chosen, "PYTHONPATH": str(ROOT)},
                pass_fds=(self._listener.fileno(),),
                stdout=log,
                stderr=log,
                cwd=self.settings.data_dir,
            )
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            assert self._process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/healthz", timeout=PATIENCE_SECONDS).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"the API did not start: {self.log.read_text()}")

    def freshen(self) -> None:
        """An empty log, and a process that runs: a test may have ended the one before."""
        self.log.write_bytes(b"")
        if self._process.poll() is not None:
            self.start()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def open_sockets(self) -> int:
        """How many sockets the process has open."""
        folder = Path(f"/proc/{self._process.pid}/fd")
        return sum(str(entry.readlink()).startswith("socket:") for entry in folder.iterdir() if entry.is_symlink())

    def rss_bytes(self, *, peak: bool = False) -> int:
        """Memory of the process: resident now, or at its highest."""
        word = "VmHWM:" if peak else "VmRSS:"
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(word):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {word} for process {self._process.pid}")

    def kill(self) -> None:
        """SIGKILL: as a crash."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def close(self) -> None:
        """No process and no socket is left."""
        if self._process.poll() is None:
            self.kill()
        self._listener.close()
        leaks.refuse(leaks.files_of(self.settings.data_dir))
