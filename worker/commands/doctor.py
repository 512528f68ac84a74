"""Looks at everything that a process of Quantmill needs, and says what is wrong and what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from service.contracts.base import VERSION
from service.contracts.errors import QuantmillError
from service.contracts.runner import InspectDatasetTask
from service.db import Database, current_revision, head_revision
from service.dispatch.broker import TaskSender, broker_tls
from service.process import is_loopback
from service.schema import is_ahead
from service.settings import Settings
from service.storage.opening import open_store
from worker.commands.console import make_console
from worker.commands.printing import print_json
from worker.confinement.controls import CONTROLS
from worker.quantizer.runtime.host import saturates_pairs
from worker.sandbox import Sandbox, SandboxLimits

_ENGINE = ("numpy", "onnx", "onnx_ir", "onnxruntime", "PIL", "safetensors")
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
_PYTHON = (3, 11)
_ENCODE = "Percent-encode @, / and : in its user and password, or give the password as QUANTMILL_{}_PASSWORD."


@dataclass(frozen=True)
class DoctorFinding:
    """What was looked at, whether it is well, what was seen, and what to do if it is not."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    missing: bool = False  # it is not there, and nobody has said that it must be


def examine(settings: Settings, *, engine: bool) -> list[DoctorFinding]:
    """Look at everything; ``engine=False`` leaves out what only a worker needs."""
    checks: list[Callable[[Settings], Iterator[DoctorFinding]]] = [_python, _folders, _database, _broker, _protections]
    if engine:
        checks += [_engine, _cpu, _sandbox, _runner]
    return [finding for check in checks for finding in check(settings)]


def print_findings(findings: list[DoctorFinding], console: Console | None = None, *, as_json: bool = False) -> None:
    """One line each; what is wrong with its hint."""
    if as_json:
        print_json({"ok": all(finding.ok for finding in findings), "items": [asdict(finding) for finding in findings]})
        return
    console = console or make_console()
    for finding in findings:
        word = ("BAD ", "bold red") if not finding.ok else ("--  ", "yellow") if finding.missing else ("ok  ", "green")
        console.print(Text.assemble(word, f" {finding.name:<12} {finding.detail}"))
        if finding.hint and (finding.missing or not finding.ok):
            console.print(Text(f"                  {finding.hint}"))


def _python(settings: Settings) -> Iterator[DoctorFinding]:
    yield DoctorFinding(
        "python",
        sys.version_info >= _PYTHON,
        f"{platform.python_version()} on {platform.platform()}, quantmill {VERSION}",
        "Quantmill needs Python 3.11 or newer.",
    )


def _folders(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.storage_url:
        yield _bucket(settings)
    copies = "copies" if settings.storage_url else "storage"
    for name, folder in ((copies, settings.storage_dir), ("scratch", settings.scratch_dir)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as stream:
                stream.write(b"x")
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield DoctorFinding(name, False, f"{folder}: {error.strerror}", f"Make {folder} writable for this user.")
            continue
        yield DoctorFinding(
            name,
            free >= settings.min_free_bytes,
            f"{folder}, {free / 2**30:.1f} GiB free",
            "Free some space: below QUANTMILL_MIN_FREE_BYTES uploads are refused.",
        )


def _bucket(settings: Settings) -> DoctorFinding:
    try:
        open_store(settings).identity("0" * 64)
    except QuantmillError as error:
        return DoctorFinding("storage", False, f"{settings.storage_url}: {error.detail}", error.hint or "")
    return DoctorFinding("storage", True, f"{settings.storage_url}, reachable")


def _database(settings: Settings) -> Iterator[DoctorFinding]:
    if _is_ambiguous(settings.database_url):
        yield DoctorFinding("database", False, "the URL cannot be read", _ENCODE.format("DATABASE"))
        return
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        yield DoctorFinding(
            "database", True, f"{shown} does not exist yet; `quantmill up` or `quantmill migrate` creates it"
        )
        return
    database = Database(settings.database_url)
    try:
        current, head = current_revision(database), head_revision()
    except SQLAlchemyError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        yield DoctorFinding("database", False, f"{shown}: {reason}", "Check QUANTMILL_DATABASE_URL and the server.")
    else:
        ahead = is_ahead(database, current)
        yield DoctorFinding(
            "database",
            current == head or ahead,
            f"{shown} at revision {current}, code at {head}" + (", which is older: update it" if ahead else ""),
            "Run `quantmill migrate`.",
        )
    finally:
        database.close()


def _broker(settings: Settings) -> Iterator[DoctorFinding]:
    if not settings.broker_url:
        yield DoctorFinding("broker", True, "none: workers poll the database")
        return
    if _is_ambiguous(settings.broker_url):
        yield DoctorFinding("broker", False, "the URL cannot be read", _ENCODE.format("BROKER"))
        return
    shown = make_url(settings.broker_url).render_as_string()
    sender = TaskSender(settings)
    try:
        sender.ping()
    except QuantmillError as error:
        yield DoctorFinding("broker", False, f"{shown}: {error.detail}", error.hint or "")
    else:
        yield DoctorFinding("broker", True, shown)
    finally:
        sender.close()


def _is_ambiguous(url: str) -> bool:
    """True if a password that was not encoded may have been taken for the host, and would be shown as such."""
    return url.count("@") > 1


def broker_protection(url: str) -> tuple[bool, str]:
    """Whether strangers on the way to the broker are kept out, and in words."""
    parts = urlsplit(url)
    tls = broker_tls(url)
    if tls is not None:
        verified = tls["ssl_cert_reqs"] is ssl.CERT_REQUIRED and tls["ssl_check_hostname"]
        return verified, "certificate and host are verified" if verified else "the host is not verified"
    local = not url or _is_local(parts.hostname)
    return local, "local" if local else "not encrypted, not verified: rediss:// is both"


def database_protection(url: str) -> tuple[bool, str]:
    """Whether strangers on the way to the database are kept out, and in words."""
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite" or _is_local(parts.host):
        return True, "local"
    mode = str(parts.query.get("sslmode", "prefer"))
    if mode == "verify-full":
        return True, "certificate and host are verified"
    return False, f"sslmode={mode}: the host is not verified; sslmode=verify-full in the URL does that"


def _is_local(host: str | None) -> bool:
    """True for a socket file and for loopback."""
    return not host or host.startswith("/") or is_loopback(host)


def _protections(settings: Settings) -> Iterator[DoctorFinding]:
    """Advice: an operator may trust the network."""
    yield DoctorFinding("database tls", True, database_protection(settings.database_url)[1])
    yield DoctorFinding("broker tls", True, broker_protection(settings.broker_url)[1])


def _engine(settings: Settings) -> Iterator[DoctorFinding]:
    for name in _ENGINE:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            yield DoctorFinding(name, False, str(error), "Install the engine: pip install 'quantmill[worker]'.")
        else:
            yield DoctorFinding(name, True, str(module.__version__))
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "not installed (only `quantmill demo` needs it)"
    yield DoctorFinding("torch", True, torch)


def _cpu(settings: Settings) -> Iterator[DoctorFinding]:
    features = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    found = [flag for flag in _CPU_FLAGS if flag in features]
    quick = any(flag in found for flag in ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"))
    if saturates_pairs():
        found.append("(no VNNI: set target_options x86_without_vnni for models that run here)")
    note = "" if quick else "; no int8 dot products: quantized models may not run faster here"
    yield DoctorFinding(
        "cpu", True, f"{settings.threads} threads per job, {' '.join(found) or 'no known features'}{note}"
    )


def _sandbox(settings: Settings) -> Iterator[DoctorFinding]:
    """One line for each control that holds runners, or does not."""
    found = Sandbox(mode=settings.sandbox).controls()
    yield DoctorFinding("sandbox", True, f"QUANTMILL_SANDBOX is {settings.sandbox}; {_user()}")
    for control in CONTROLS:
        here, wanted = found.has(control), settings.sandbox == "require" and control.required
        told = (
            f"stops {control.stops}" if here else f"not here: {found.missing[control.name]}; would stop {control.stops}"
        )
        yield DoctorFinding(control.name, here or not wanted, told, f"Needs {control.needs}.", missing=not here)


def _user() -> str:
    if os.geteuid() == 0:
        return "this user is root: use an unprivileged user"
    return f"this user is {os.geteuid()}, not root"


def _runner(settings: Settings) -> Iterator[DoctorFinding]:
    """A runner process under its limits, on a dataset that is not there: it has to answer with a typed error."""
    with tempfile.TemporaryDirectory(prefix="quantmill-doctor-") as folder:
        task_file = Path(folder) / "task.json"
        task_file.write_text(InspectDatasetTask(path=str(Path(folder) / "none.npz")).model_dump_json())
        process = Sandbox(mode=settings.sandbox).start(
            task_file, scratch=Path(folder), limits=SandboxLimits(memory_bytes=settings.job_memory_bytes)
        )
        lines = list(process.remaining_lines(60))
        process.close()
    if lines and lines[-1].line == "error":
        yield DoctorFinding("runner", True, "starts under its limits and answers")
    else:
        detail = process.stderr_tail(400).strip().splitlines() or [f"exit code {process.returncode}"]
        yield DoctorFinding(
            "runner", False, detail[-1], "Jobs would fail in the same way; the text above is the last output."
        )
