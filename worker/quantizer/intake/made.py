"""Models whose ONNX file is made by their validation: of new weights, or of an exported program."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from service.contracts.model import MADE_MODEL
from service.contracts.runner import InspectModelTask, ModelFileMade, ModelResult
from worker.quantizer.graph.skeleton import weight_bytes
from worker.quantizer.intake.inspect import file_sha256, inspect_model, open_model
from worker.quantizer.intake.program import read_program
from worker.quantizer.intake.state import apply_state

# What a single file may hold; larger weights go into a file beside it.
_LARGEST_FILE_BYTES = 2_000_000_000


def validate(task: InspectModelTask) -> ModelResult:
    """Validate an uploaded model, once its ONNX file is made if it comes as something else.

    Raises:
        StateError: the new weights do not fit the skeleton's graph.
        ProgramError: the exported program cannot become an ONNX model.
        QuantmillError: as ``inspect_model``.
    """
    path = Path(task.model_path)
    if task.output_dir is None:
        return ModelResult(summary=inspect_model(path, threads=task.threads))
    made = Path(task.output_dir) / MADE_MODEL
    if task.state_path is not None:
        files = fill(path, Path(task.state_path), made)
    else:
        files = save_whole(read_program(path, threads=task.threads), made)
    summary = inspect_model(made, threads=task.threads)
    return ModelResult(
        summary=summary, files=tuple(ModelFileMade(file=file.name, sha256=file_sha256(file)) for file in files)
    )


def fill(skeleton: Path, state: Path, output: Path) -> list[Path]:
    """Write the skeleton's graph with the weights of ``state``; gives the files written, the ONNX file first.

    Raises:
        StateError: the state does not fit, see ``apply_state``.
        QuantmillError: the skeleton cannot be read, see ``open_model``.
    """
    model = open_model(skeleton).model
    apply_state(model, state)
    return save_whole(model, output)


def save_whole(model: ir.Model, path: Path) -> list[Path]:
    """Write a model as one file, or above 2 GB with its weights in a file of this name and ``.data`` beside it."""
    if weight_bytes(model) <= _LARGEST_FILE_BYTES:
        ir.save(model, path)
        return [path]
    data = path.with_name(f"{path.name}.data")
    ir.save(model, path, external_data=data.name)
    return [path, data]
