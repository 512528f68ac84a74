"""Quantized models appear where they are wanted whole or not at all: for the command line and for Python."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.contracts.runner import QuantizeResult, QuantizeTask
from worker.quantizer.run.interface import Run

_DATA_CHARS = 120


@contextmanager
def quantized(
    task: QuantizeTask, output: Path, run: Run, functions: Mapping[str, Any] | None = None
) -> Iterator[tuple[QuantizeResult, Path]]:
    """Quantize into ``output``, beside which the external data of a large model goes.

    Args:
        task: whose output folder is a temporary one beside ``output``.
        output: of the model.
        run: progress, log, cancellation.
        functions: Python functions that metrics are, by name.

    Yields:
        The result, and the folder with its further files, which goes afterwards.

    Raises:
        QuantmillError: whatever the engine refuses.
    """
    from worker.quantizer.command import quantize_files

    with tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=".quantmill-") as name:
        folder = Path(name)
        placed = task.model_copy(update={"output_dir": name, "data_file": data_name(output)})
        result = quantize_files(placed, run, functions=functions or {})
        publish_data(result, folder, output)
        publish(folder / result.model_file, output)
        yield result, folder


def publish(source: Path, destination: Path) -> None:
    """Give ``source`` its final name once its bytes are on disk; both lie on one filesystem."""
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    # Temporary files are private; results get the permissions that any new file would have.
    mask = os.umask(0)
    os.umask(mask)
    source.chmod(0o666 & ~mask)
    source.replace(destination)


def data_name(output: Path) -> str:
    """What the external data of a model at ``output`` is called, should it be so large that it has any."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", output.name).lstrip("._-")[:_DATA_CHARS] or "model.onnx"
    return f"{name}.data"


def publish_data(result: QuantizeResult, source: Path, output: Path) -> None:
    """Put the external data of a model, if it has any, beside the place that the model is going to have.

    Raises:
        OSError: the disk refused.
    """
    if result.data is not None:
        publish(source / result.data.file, output.with_name(result.data.file))
