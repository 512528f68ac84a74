from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny, make_tiny
from tests.worker.running import Service
from worker import cli

ROOT = Path(__file__).parents[2]
KEY = "a-key-for-these-tests"
Quantmill = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service, with a key, for all tests that do it no harm."""
    with Service(tmp_path_factory.mktemp("service") / "home", QUANTMILL_API_KEY=KEY) as running:
        yield running


@pytest.fixture
def quantmill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantmill_process: Quantmill) -> Quantmill:
    """Runs ``quantmill ARGUMENTS`` in an empty folder: the entry point itself, in this process, where all is loaded.

    Variables of the interpreter need a process of its own, and get one.
    """

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        if any(name.startswith("PYTHON") for name in variables):
            return quantmill_process(*arguments, **variables)
        out, err = io.StringIO(), io.StringIO()
        words = ["quantmill", *map(str, arguments)]
        with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", words)
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def quantmill_process(tmp_path: Path) -> Quantmill:
    """As ``quantmill``, as a process of its own."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
        return subprocess.run(
            [sys.executable, "-P", "-m", "worker.cli", *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    return run
