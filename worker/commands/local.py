"""Quantize and evaluate in this very process: the engine that the service runs, without the service."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from service.contracts.runner import QuantizeTask
from worker.commands.console import ProgressView
from worker.commands.files import FilesDone, move_files
from worker.commands.recipes import Measurement, Quantization, load_recipe, packed, source, with_ranges_of
from worker.publishing import quantized


def quantize(
    task: Quantization,
    *,
    threads: int,
    view: ProgressView,
    checkpoint_dir: Path | None = None,
    cache_dir: Path | None = None,
    cache_bytes: int | None = None,
) -> FilesDone:
    """Quantize a model into its output, which appears whole or not at all.

    Args:
        task: what is quantized how.
        threads: of the CPU.
        view: shows the progress.
        checkpoint_dir: keeps finished work for the same command, started again; made if it is not there.
        cache_dir: keeps what was computed for any other command; likewise.
        cache_bytes: what the cache may take; None: no limit.

    Raises:
        FileAccessError: a further file has the name of another one of the command.
        StateError: the weights do not fit; names each tensor.
        QuantmillError: whatever the engine refuses.
    """
    config, output = task.config, task.output
    if task.ranges_from is not None:
        config = with_ranges_of(config, Path(task.ranges_from))
    with ExitStack() as stack:
        model = task.model if task.state is None else stack.enter_context(filled(task.model, task.state))
        order = QuantizeTask(
            model_path=str(model.absolute()),
            config=config,
            calibration=task.calibration,
            evaluation=task.evaluation,
            output_dir="",
            threads=threads,
            checkpoint_dir=_made(checkpoint_dir),
            cache_dir=_made(cache_dir),
            cache_bytes=cache_bytes,
            graph=task.extra.folder is not None,
        )
        result, folder = stack.enter_context(quantized(order, output, view))
        return move_files(result, folder, task.extra)


@contextmanager
def filled(model: Path, state: Path) -> Iterator[Path]:
    """The model's graph with the weights of ``state``, in a temporary file.

    Raises:
        StateError: the weights do not fit; names each tensor.
    """
    from worker.quantizer.intake.made import fill

    with tempfile.TemporaryDirectory(prefix="quantmill-state-") as folder:
        yield fill(model, state, Path(folder) / model.name)[0]


def _made(folder: Path | None) -> str | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder.absolute())


def evaluate(task: Measurement, *, threads: int, view: ProgressView) -> dict[str, Any]:
    """Metrics of a model and, with a reference, its fidelity to it; ready for JSON.

    Raises:
        QuantmillError: whatever the engine refuses.
    """
    from worker.quantizer.evaluation.command import evaluated

    reference = None if task.reference is None else task.reference.absolute()
    recipe = load_recipe(None, task.config)
    with recipe.pointing_into_file(), packed(task.evaluation, "evaluation") as path:
        data, spec = source(path, task.preprocessing), recipe.config.evaluation
        found = evaluated(task.model.absolute(), data, reference, threads=threads, run=view, spec=spec)
        return found.report.to_json_dict()
