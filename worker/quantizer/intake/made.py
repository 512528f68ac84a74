"""Models whose ONNX file is made by their validation: of new weights, or of an exported program."""

from __future__ import annotations

from pathlib import Path

from service.contracts.model import MADE_MODEL
from service.contracts.runner import InspectModelTask, MadeFile, ModelResult
from worker.quantizer.graph.serialized import save_whole
from worker.quantizer.intake.inspect import inspect_model, open_model
from worker.quantizer.intake.loading import file_sha256


def validate(task: InspectModelTask) -> ModelResult:
    """Validate an uploaded model, once its ONNX file is made if it comes as something else.

    Raises:
        StateError: the new weights do not fit the skeleton's graph.
        ProgramError: the exported program cannot become an ONNX model.
        QuantmillError: as ``inspect_model``.
    """
    path = Path(task.model_path)
    if task.output_dir is None:
        return ModelResult(summary=inspect_model(path, threads=task.threads, timed=True))
    made = Path(task.output_dir) / MADE_MODEL
    if task.state_path is not None:
        files = fill(path, Path(task.state_path), made)
    else:
        from worker.quantizer.intake.program import read_program  # most uploads do without, and it loads much

        files = save_whole(read_program(path, threads=task.threads), made)
    summary = inspect_model(made, threads=task.threads, timed=True)
    return ModelResult(
        summary=summary, files=tuple(MadeFile(file=file.name, sha256=file_sha256(file)) for file in files)
    )


def fill(skeleton: Path, state: Path, output: Path) -> list[Path]:
    """Write the skeleton's graph with the weights of ``state``; gives the files written, the ONNX file first.

    Raises:
        StateError: the state does not fit, see ``apply_state``.
        QuantmillError: the skeleton cannot be read, see ``open_model``.
    """
    from worker.quantizer.intake.state import apply_state  # most uploads do without, and it loads much

    model = open_model(skeleton).model
    apply_state(model, state)
    return save_whole(model, output)
