"""Quantize and evaluate in this very process: the engine that the service runs, without the service."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import InvalidConfigError, InvalidRequestError
from service.contracts.quark import translate_document
from service.contracts.report import Report
from service.contracts.runner import DatasetSource, QuantizeTask
from service.contracts.validation import field_problems
from worker.commands.console import ProgressView

MODEL_FILE = "model.onnx"


def load_config(preset: str | None, file: Path | None) -> QuantizationConfig:
    """The resolved config of a preset, of a JSON file, or of neither: the default preset.

    Raises:
        InvalidConfigError: the file is not JSON, or the config is not valid.
    """
    if file is None:
        return parse_config({} if preset is None else {"preset": preset})
    try:
        document = json.loads(file.read_text())
    except ValueError as error:
        raise InvalidConfigError(
            f"{file} is not a JSON document: {error}", hint='The smallest config is {"preset": "int8"}.'
        ) from None
    translation = translate_document(document)
    for note in translation.notes if translation is not None else ():
        typer.echo(f"note: {file}: {note}", err=True)
    return parse_config(document)


def load_preprocessing(text: str | None) -> PreprocessingSpec:
    """The preprocessing given as JSON text or as the path of a JSON file.

    Raises:
        InvalidRequestError: it is no JSON, or not a valid spec.
    """
    if text is None:
        return PreprocessingSpec()
    document = text if text.lstrip().startswith("{") else Path(text).read_text()
    try:
        return PreprocessingSpec.model_validate_json(document)
    except ValidationError as error:
        problems = field_problems(error, PreprocessingSpec, pointer="/preprocessing")
        raise InvalidRequestError(
            "; ".join(f"{problem.pointer}: {problem.message}" for problem in problems[:5]),
            errors=problems,
            hint='For images: {"inputs": {"INPUT": {"layout": "NHWC", "scale": 0.00392156862745098}}}',
        ) from None


def quantize(
    model: Path,
    *,
    config: QuantizationConfig,
    calibration: DatasetSource,
    evaluation: DatasetSource | None,
    output: Path,
    threads: int,
    view: ProgressView,
) -> Report:
    """Quantize ``model`` into ``output``, which appears whole or not at all.

    Raises:
        QuantmillError: whatever the engine refuses.
    """
    from worker.quantizer.pipeline import quantize_files

    with tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=".quantmill-") as folder:
        task = QuantizeTask(
            model_path=str(model.absolute()),
            config=config,
            calibration=calibration,
            evaluation=evaluation,
            output_dir=folder,
            threads=threads,
        )
        report = quantize_files(task, view)
        publish(Path(folder) / MODEL_FILE, output)
    return report


def evaluate(
    model: Path,
    *,
    evaluation: Path,
    preprocessing: PreprocessingSpec,
    reference: Path | None,
    threads: int,
    view: ProgressView,
) -> dict[str, Any]:
    """Metrics of ``model`` and, with a reference, its fidelity to it; ready for JSON.

    Raises:
        QuantmillError: whatever the engine refuses.
    """
    from worker.quantizer.evaluation.command import evaluate_files

    data = source(evaluation, preprocessing)
    reference = None if reference is None else reference.absolute()
    return evaluate_files(model.absolute(), data, reference, threads=threads, run=view)


def write_report(report: Report, path: Path) -> None:
    """Write the report as JSON, whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.absolute().parent, prefix=".quantmill-", delete=False) as stream:
        json.dump(report.to_json_dict(), stream, indent=2)
        stream.write("\n")
    publish(Path(stream.name), path)


def publish(source: Path, destination: Path) -> None:
    """Give ``source`` its final name once its bytes are on disk; both lie on one filesystem."""
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    # Temporary files are private; results get the permissions that any new file would have.
    mask = os.umask(0)
    os.umask(mask)
    source.chmod(0o666 & ~mask)
    source.replace(destination)


def source(path: Path, preprocessing: PreprocessingSpec) -> DatasetSource:
    """A dataset file of the command line."""
    return DatasetSource(path=str(path.absolute()), preprocessing=preprocessing)
