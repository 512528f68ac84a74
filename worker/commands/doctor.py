"""Looks at everything that a process of Quantmill needs, and says what is wrong and what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from service.contracts.errors import QuantmillError
from service.contracts.runner import InspectDatasetTask
from service.contracts.version import VERSION
from service.db import Database, current_revision, head_revision
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from worker.commands.console import make_console
from worker.confinement.controls import CONTROLS
from worker.quantizer.runtime.cpu import saturates_pairs
from worker.sandbox import Limits, Sandbox

_ENGINE = ("numpy", "onnx", "onnx_ir", "onnxruntime", "PIL", "safetensors")
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
_PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """What was looked at, whether it is well, what was seen, and what to do if it is not.

    Attributes:
        missing: it is not there, and nobody has said that it must be.
    """

    name: str
    ok: bool
    detail: str
    hint: str = ""
    missing: bool = False


def examine(settings: Settings, *, engine: bool) -> list[Finding]:
    """Look at everything; ``engine=False`` leaves out what only a worker needs."""
    checks: list[Callable[[Settings], Iterator[Finding]]] = [_python, _folders, _database, _broker]
    if engine:
        checks += [_engine, _cpu, _sandbox, _runner]
    return [finding for check in checks for finding in check(settings)]


def print_findings(findings: list[Finding], console: Console | None = None) -> None:
    """One line each; what is wrong with its hint."""
    console = console or make_console()
    for finding in findings:
        word = ("BAD ", "bold red") if not finding.ok else ("--  ", "yellow") if finding.missing else ("ok  ", "green")
        console.print(Text.assemble(word, f" {finding.name:<12} {finding.detail}"))
        if finding.hint and (finding.missing or not finding.ok):
            console.print(Text(f"                  {finding.hint}"))


def _python(settings: Settings) -> Iterator[Finding]:
    yield Finding(
        "python",
        sys.version_info >= _PYTHON,
        f"{platform.python_version()} on {platform.platform()}, quantmill {VERSION}",
        "Quantmill needs Python 3.11 or newer.",
    )


def _folders(settings: Settings) -> Iterator[Finding]:
    for name, folder in (("storage", settings.storage_dir), ("scratch", settings.scratch_dir)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as stream:
                stream.write(b"x")
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield Finding(name, False, f"{folder}: {error.strerror}", f"Make {folder} writable for this user.")
            continue
        yield Finding(
            name,
            free >= settings.min_free_bytes,
            f"{folder}, {free / 2**30:.1f} GiB free",
            "Free some space: below QUANTMILL_MIN_FREE_BYTES uploads are refused.",
        )


def _database(settings: Settings) -> Iterator[Finding]:
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        yield Finding("database", True, f"{shown} is not there yet; `quantmill up` or `quantmill migrate` makes it")
        return
    database = Database(settings.database_url)
    try:
        current, head = current_revision(database), head_revision()
    except SQLAlchemyError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        yield Finding("database", False, f"{shown}: {reason}", "Check QUANTMILL_DATABASE_URL and the server.")
    else:
        yield Finding(
            "database",
            current == head,
            f"{shown} at revision {current}, code at {head}",
            "Run `quantmill migrate`.",
        )
    finally:
        database.close()


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.embedded_broker and not settings.broker_dir.exists():
        yield Finding("broker", True, f"{settings.broker_dir} is not there yet; `quantmill up` makes it")
        return
    shown = str(settings.broker_dir) if settings.embedded_broker else make_url(settings.broker_url).render_as_string()
    dispatcher = Dispatcher(settings)
    try:
        dispatcher.ping()
    except QuantmillError as error:
        yield Finding("broker", False, f"{shown}: {error.detail}", error.hint or "")
    else:
        yield Finding("broker", True, shown)
    finally:
        dispatcher.close()


def _engine(settings: Settings) -> Iterator[Finding]:
    for name in _ENGINE:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            yield Finding(name, False, str(error), "Install the engine: pip install 'quantmill[worker]'.")
        else:
            yield Finding(name, True, str(module.__version__))
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "not installed (only `quantmill demo` needs it)"
    yield Finding("torch", True, torch)


def _cpu(settings: Settings) -> Iterator[Finding]:
    features = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    found = [flag for flag in _CPU_FLAGS if flag in features]
    quick = any(flag in found for flag in ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"))
    if saturates_pairs():
        found.append("(no VNNI: set target_options x86_without_vnni for models that run here)")
    note = "" if quick else "; no int8 dot products: quantized models may not run faster here"
    yield Finding("cpu", True, f"{settings.threads} threads per job, {' '.join(found) or 'no known features'}{note}")


def _sandbox(settings: Settings) -> Iterator[Finding]:
    """One line for each control that holds runners, or does not."""
    found = Sandbox(mode=settings.sandbox).controls()
    yield Finding("sandbox", True, f"QUANTMILL_SANDBOX is {settings.sandbox}; {_user()}")
    for control in CONTROLS:
        here, wanted = found.has(control), settings.sandbox == "require" and control.required
        told = (
            f"stops {control.stops}" if here else f"not here: {found.missing[control.name]}; would stop {control.stops}"
        )
        yield Finding(control.name, here or not wanted, told, f"Needs {control.needs}.", missing=not here)


def _user() -> str:
    if os.geteuid() == 0:
        return "this user is root: use a plain one, to whom the system's files do not belong"
    return f"this user is {os.geteuid()}, not root"


def _runner(settings: Settings) -> Iterator[Finding]:
    """A runner process under its limits, on a dataset that is not there: it has to answer with a typed error."""
    with tempfile.TemporaryDirectory(prefix="quantmill-doctor-") as folder:
        task_file = Path(folder) / "task.json"
        task_file.write_text(InspectDatasetTask(path=str(Path(folder) / "none.npz")).model_dump_json())
        process = Sandbox(mode=settings.sandbox).start(
            task_file, scratch=Path(folder), limits=Limits(memory_bytes=settings.job_memory_bytes)
        )
        lines = list(process.remaining_lines(60))
        process.close()
    if lines and lines[-1].line == "error":
        yield Finding("runner", True, "starts under its limits and answers")
    else:
        detail = process.stderr_tail(400).strip().splitlines() or [f"exit code {process.returncode}"]
        yield Finding("runner", False, detail[-1], "A job would fail in the same way; the text above is its last word.")
