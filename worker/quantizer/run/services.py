"""What serves a quantization, whatever it quantizes, and the files that it gives beside the model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.contracts.errors import EngineError, ResourceLimitError
from service.contracts.runner import DATA_FILE, MAX_FILES, ResultFile
from worker.quantizer.graph.mapped import SpillFolder
from worker.quantizer.intake.loading import file_sha256
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import Run
from worker.quantizer.run.progress import Stages


@dataclass(frozen=True)
class ExtraFile:
    """A file of a run's result."""

    # what it is, the name by which it is found among the job's artifacts: a lowercase word such as
    # ``sensitivity_json``, used once per run
    kind: str
    filename: str  # name under which it is downloaded, used once per run
    media_type: str  # such as ``application/json``
    content: bytes | Path  # its bytes, or a file that is moved away when the result is written

    @property
    def size_bytes(self) -> int:
        """Bytes of the content."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


class ExtraFiles:
    """Collects the files of one run.

    Args:
        limit_bytes: that all of them may take; None: no limit.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit_bytes
        self._files: list[ExtraFile] = []
        self._taken = 0

    @property
    def all(self) -> tuple[ExtraFile, ...]:
        """In the order in which they were added."""
        return tuple(self._files)

    def has_room(self, file: ExtraFile) -> bool:
        """True if it is not too many and not too large; for what nobody asked for and a run may go without."""
        too_large = self._limit is not None and self._taken + file.size_bytes > self._limit
        return len(self._files) < MAX_FILES and not too_large

    def add(self, file: ExtraFile) -> None:
        """Add ``file``.

        Raises:
            pydantic.ValidationError: its kind, name or media type is not spelled as one; a fault of the caller.
            ValueError: another file has its kind or name; a fault of the caller.
            EngineError: there are too many.
            ResourceLimitError: they take more than they may.
        """
        ResultFile(kind=file.kind, file=file.filename, media_type=file.media_type, sha256="0" * 64)
        for other in self._files:
            if other.kind == file.kind or other.filename.lower() == file.filename.lower():
                raise ValueError(f"{file.kind} ({file.filename}) collides with {other.kind} ({other.filename})")
        if len(self._files) >= MAX_FILES:
            raise EngineError(
                f"The run creates more than {MAX_FILES} files besides its model.",
                hint="Request fewer candidates or analyses in one job.",
            )
        self._taken += file.size_bytes
        if self._limit is not None and self._taken > self._limit:
            raise ResourceLimitError(
                f"The files besides the model need {self._taken} bytes; the limit is {self._limit}.",
                hint="Request fewer candidates or analyses in one job, or raise QUANTMILL_EXTRA_BYTES.",
                resource="disk",
            )
        self._files.append(file)


def write_files(files: tuple[ExtraFile, ...], folder: Path) -> tuple[ResultFile, ...]:
    """Write ``files`` into ``folder`` under their names.

    Raises:
        OSError: the disk refused.
    """
    written = []
    for file in files:
        path = folder / file.filename
        if isinstance(file.content, bytes):
            path.write_bytes(file.content)
        else:
            shutil.move(file.content, path)
        sha256 = file_sha256(path)
        written.append(ResultFile(kind=file.kind, file=file.filename, media_type=file.media_type, sha256=sha256))
    return tuple(written)


# What serves a quantization, whatever it quantizes.


def nobody(place: str) -> None:
    """Told that the run has come to ``place``, and does nothing."""


@dataclass(frozen=True)
class Services:
    """What every stage is served by."""

    run: Run  # progress, log, cancellation
    threads: int  # CPU threads
    stages: Stages = field(default_factory=Stages)  # takes the seconds and the memory of each stage
    # finished pieces of this run's work, for an attempt after this one and for runs that need the same
    checkpoint: CheckpointStore = field(default_factory=lambda: CheckpointStore(None))
    files: ExtraFiles = field(default_factory=ExtraFiles)  # takes what the run gives beside the model
    # told the name of a place in the work that the run has come to; tests let it fail there
    reached: Callable[[str], None] = nobody
    spill: SpillFolder | None = None  # takes arrays that are too large to be held; None: the model is not
    data_file: str = DATA_FILE  # name of the file of external data that a model above 2 GB refers to
