"""A real MLflow server from PyPI, in the environment that ``make mlflow`` makes, and programs run beside it there.

Without that environment tests that need it are skipped; with CI=true they fail instead.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
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
def serving(
    folder: Path, name: str, command: list[str], answers: Callable[[], bool], *, home: Path = HOME, **variables: str
) -> Iterator[None]:
    """A program of an environment, from when it answers to the end of the block; its log lies in ``folder``."""
    log = folder / f"{name}.log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            [str(home / "bin" / command[0]), *command[1:]],
            cwd=folder, env=environment(**variables), stdout=told, stderr=told, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or answers(), message=f"{name} does not start")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def is_there(url: str) -> bool:
    """Whether something answers well there."""
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of a server that keeps its database and all artifacts in ``folder``."""
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    command = [
        *("mlflow", "server", "--host", "127.0.0.1", "--port", port),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts"),
    ]
    with serving(folder, "mlflow", command, lambda: is_there(f"{url}/health")):
        yield url


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
