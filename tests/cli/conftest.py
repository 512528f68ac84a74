from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.jobs.schemas import JobOut
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.tiny import Tiny, make_tiny
from tests.support.webhooks import answering
from tests.worker.running import Service
from worker import cli

ROOT = Path(__file__).parents[2]
KEY = "a-key-for-these-tests"
NOWHERE = "http://127.0.0.1:1"
Quantmill = Callable[..., subprocess.CompletedProcess[str]]
Ask = Callable[..., str]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def receiver() -> Iterator[Scripted]:
    """Takes whatever the service sends."""
    with scripted(answering(200)) as running:
        yield running


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, receiver: Scripted) -> Iterator[Service]:
    """One service, with a key, for all tests that do it no harm. It may send to the receiver."""
    variables = {"QUANTMILL_API_KEY": KEY, "QUANTMILL_EGRESS_ALLOWED": f"http://127.0.0.1:{receiver.port}"}
    with Service(tmp_path_factory.mktemp("service") / "home", **variables) as running:
        yield running


@pytest.fixture(scope="package")
def uploaded(service: Service, tiny: Tiny) -> dict[str, str]:
    """Ids of model and data on the service, as ``submit`` takes them."""
    return service.upload(tiny)


@pytest.fixture(scope="package")
def job(service: Service, uploaded: dict[str, str]) -> JobOut:
    """A job that has succeeded."""
    labels = {"build": "7", "team/owner": "größe"}
    made = service.client.submit(**uploaded, preset="int8", name="results", labels=labels)
    return service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="package")
def other_job(service: Service, uploaded: dict[str, str]) -> JobOut:
    """The same in shifts of powers of two; its gate is broken."""
    config = {"preset": "xint8", "evaluation": {"gate": {"min_sqnr_db": 200}}}
    made = service.client.submit(**uploaded, config=config, name="[bold]others[/bold]")
    return service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="package")
def evaluation(service: Service, uploaded: dict[str, str]) -> JobOut:
    """An evaluation that has succeeded; its gate is broken."""
    made = service.client.submit_evaluation(
        model=uploaded["model"], evaluation=uploaded["evaluation"],
        spec={"latency_runs": 1, "gate": {"max_size_bytes": 1}},
    )  # fmt: skip
    return service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture
def ask(quantmill: Quantmill, service: Service) -> Ask:
    """Runs ``quantmill ARGUMENTS`` on the service; gives standard output, or of a failure standard error."""

    def run(*arguments: object, code: int = 0) -> str:
        done = quantmill(*arguments, "--server", service.url, "--key", KEY, code=code)
        return done.stdout if code == 0 else words(done.stderr)

    return run


def words(told: str) -> str:
    """What was told, without its lines and frames."""
    return " ".join(told.replace("│", " ").split())


def checked(done: subprocess.CompletedProcess[str], code: int | None) -> subprocess.CompletedProcess[str]:
    """A command that ended with this code, if one is given, and told whatever is wrong in words."""
    assert code in (None, done.returncode), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def quantmill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantmill_process: Quantmill) -> Quantmill:
    """Runs ``quantmill ARGUMENTS`` in an empty folder: the entry point itself, in this process, where all is loaded.

    Variables of the interpreter need a process of its own, and get one.
    """

    def run(*arguments: object, code: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        if any(name.startswith("PYTHON") for name in variables):
            return quantmill_process(*arguments, code=code, **variables)
        out, err = io.StringIO(), io.StringIO()
        command = ["quantmill", *map(str, arguments)]
        with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", command)
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                cli.main()
                ended = 0
            except SystemExit as end:
                ended = end.code if isinstance(end.code, int) else int(end.code is not None)
        return checked(subprocess.CompletedProcess(command, ended, out.getvalue(), err.getvalue()), code)

    return run


@pytest.fixture
def quantmill_process(tmp_path: Path) -> Quantmill:
    """As ``quantmill``, as a process of its own."""

    def run(*arguments: object, code: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "worker.cli", *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return checked(done, code)

    return run
