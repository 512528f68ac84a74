"""A real MLflow server from PyPI, in the environment that ``make mlflow`` makes, and programs run beside it there.

Without that environment tests that need it are skipped; with CI=true they fail instead.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.fault.harness.servers import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import ROOT, environment
from tests.worker.workbench import wait_for

HOME = ROOT / ".venv-mlflow"


def mlflow_trouble() -> str | None:
    """Why there is no MLflow to test with; None if there is."""
    if (HOME / ".installed").exists():
        return None
    return f"no MLflow in {HOME.name}: the hand-over to it is not tested; make mlflow installs it"


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of a server that keeps its database and all artifacts in ``folder``."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        *(str(HOME / "bin" / "mlflow"), "server", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts"),
    ]
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(PYTHONPATH=""), stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: process.poll() is not None or _answers(url), message="MLflow does not start")
        assert process.poll() is None, (folder / "mlflow.log").read_text()
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def run_beside(
    folder: Path, *arguments: str, code: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Python of that environment, with the project of this checkout: a command line of ours, or ``code``."""
    words = ["-P", "-m", "worker.cli", *arguments] if code is None else ["-P", "-c", code, *arguments]
    return subprocess.run(
        [str(HOME / "bin" / "python"), *words],
        cwd=folder,
        env=environment(MLFLOW_HTTP_REQUEST_MAX_RETRIES="1", **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False
