"""Files that a command leaves behind: how they get there, and what is said of those beside model and report."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from service.contracts.command_errors import FileAccessError
from service.contracts.report import Report
from service.contracts.runner import FILE_PATTERN, RESERVED_KINDS, QuantizeResult
from worker.publishing import publish

if TYPE_CHECKING:
    from service.client import Client


@dataclass(frozen=True)
class ExtraPlace:
    """Where further files go."""

    folder: Path | None = None  # made if there is anything to put there; None: nowhere
    protected: tuple[Path, ...] = ()  # files of the command that must not be written over

    def path(self, folder: Path, name: str) -> Path:
        """The path of the file ``name`` in ``folder``.

        Raises:
            FileAccessError: it is one of the command's other files.
        """
        path = folder / name
        if any(path.resolve() == other.resolve() for other in self.protected):
            raise FileAccessError(f"{path} would be written over.", hint="Name another folder with --extra-dir.")
        return path


NOWHERE = ExtraPlace()


@dataclass(frozen=True)
class FilesDone:
    """What a quantization gave."""

    report: Report  # of the quantized model
    written: tuple[Path, ...] = ()  # the further files that were written
    left: tuple[str, ...] = ()  # kinds of those that were not, as no folder was named for them


def move_files(result: QuantizeResult, source: Path, extra: ExtraPlace) -> FilesDone:
    """Move the further files of ``result`` from ``source`` to where they belong; each appears whole or not at all.

    Raises:
        FileAccessError: a file has the name of another one of the command.
        OSError: the disk refused.
    """
    folder, files = extra.folder, result.files
    if folder is None or not files:
        return FilesDone(result.report, left=tuple(file.kind for file in files))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file in files:
        path = extra.path(folder, file.file)
        part = path.with_name(f".quantmill-{file.file}")
        shutil.move(source / file.file, part)
        publish(part, path)
        written.append(path)
    return FilesDone(result.report, tuple(written))


def download_files(client: Client, job_id: str, report: Report, extra: ExtraPlace) -> FilesDone:
    """Download what a succeeded job gave beside model and report.

    Raises:
        DownloadCorruptError: bytes are not those of the artifact, or its name is not that of a file.
        FileAccessError: a file has the name of another one of the command.
    """
    from service.client import DownloadCorruptError

    found = [item for item in client.artifacts(job_id) if item.kind not in RESERVED_KINDS]
    folder = extra.folder
    if folder is None or not found:
        return FilesDone(report, left=tuple(item.kind for item in found))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for item in found:
        if not re.fullmatch(FILE_PATTERN, item.filename):
            raise DownloadCorruptError(
                f"The service names an artifact {item.filename!r}, which is not a valid file name.",
                hint=f"Download it by its id: {item.id}.",
            )
        path = extra.path(folder, item.filename)
        client.download_artifact(item.id, path)
        written.append(path)
    return FilesDone(report, tuple(written))


def print_files(done: FilesDone) -> None:
    """Name the further files: those that were written, and how to get the others."""
    for path in done.written:
        typer.echo(f"file      {path}")
    if done.left:
        typer.echo(f"Also available: {', '.join(done.left)} (--extra-dir)", err=True)
