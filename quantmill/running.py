"""What all quantizations from Python share: configs, functions as metrics, the run here or on a service, the result."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from service.client import Client, DownloadCorruptError
from service.contracts.brief import Brief, Row
from service.contracts.command_errors import FileAccessError
from service.contracts.config import QuantizationConfig
from service.contracts.documents import Config, config_document, config_file, in_file
from service.contracts.errors import InvalidConfigError, InvalidRequestError
from service.contracts.evaluation_checks import check_no_function
from service.contracts.graph_view import GRAPH_KIND
from service.contracts.report import Report
from service.contracts.runner import FILE_PATTERN, DatasetSource, QuantizeTask
from service.cores import available_cores
from service.quark import read_config, translate_document

if TYPE_CHECKING:
    from worker.quantizer.run.interface import Run
else:
    Run = Any  # the engine is loaded when it works: ``quantize_into`` checks it

# By name: a function, or an entry of evaluation.metrics with it under "function".
Metrics = Mapping[str, Callable[..., float] | Mapping[str, Any]]
_UNNAMED = "lambda"


class WorkOptions(TypedDict, total=False):
    """By what the work is done, what is measured besides, and where the model goes; see ``quantize``."""

    client: Client | None
    output: str | Path | None
    threads: int | None
    run: Run | None
    metrics: Metrics | None


@dataclass(frozen=True, repr=False)
class Quantized(Brief):
    """A quantized model.

    Attributes:
        onnx_path: the quantized model.
        report: what was done, and what it cost.
        files: what the algorithms gave besides, by kind.
    """

    onnx_path: Path
    report: Report
    files: Mapping[str, Path] = field(default_factory=dict)

    def _brief(self) -> Iterator[Row]:
        yield from self.report._brief()
        yield "onnx_path", str(self.onnx_path)
        yield "", "deleted when Python exits; output= keeps it" if is_temporary(self.onnx_path) else ""


@dataclass(frozen=True)
class Recipe:
    """A config, resolved, and the Python functions that its metrics are, by name."""

    config: QuantizationConfig
    functions: Mapping[str, Callable[..., float]] = field(default_factory=dict)


def as_recipe(config: Config, metrics: Metrics | None = None) -> Recipe:
    """The recipe of a preset's name, of a document (ours or Quark's) or its file, or of a config, and further metrics.

    Graphs that a document names by path are read. An entry of ``evaluation.metrics`` may be a function, or an object
    with one under ``function``.

    Raises:
        InvalidConfigError: it is not valid.
    """
    if isinstance(config, QuantizationConfig) and not metrics:
        return Recipe(config)
    document = config_document(config)
    with in_file(config_file(config)):
        if metrics and translate_document(document) is not None:
            document = config_document(read_config(document))
        document, functions = _parted(document, metrics or {})
        return Recipe(read_config(document), functions)


def _parted(document: dict[str, Any], metrics: Metrics) -> tuple[dict[str, Any], dict[str, Callable[..., float]]]:
    """The document with names in the places of functions, and the functions."""
    evaluation = document.get("evaluation") or {}
    if not isinstance(evaluation, Mapping) or not isinstance(evaluation.get("metrics", []), list):
        return document, {}  # it is refused, with its place, when it is read
    listed = [*evaluation.get("metrics", [])]
    listed += [
        {"name": name, **(given if isinstance(given, Mapping) else {"function": given})}
        for name, given in metrics.items()
    ]
    functions: dict[str, Callable[..., float]] = {}
    named = [_named(entry, functions, f"/evaluation/metrics/{place}") for place, entry in enumerate(listed)]
    return ({**document, "evaluation": {**evaluation, "metrics": named}} if functions else document), functions


def _named(entry: Any, functions: dict[str, Callable[..., float]], pointer: str) -> Any:
    if callable(entry):
        entry = {"function": entry}
    if not isinstance(entry, Mapping) or "function" not in entry:
        return entry
    function = entry["function"]
    name = entry.get("name", getattr(function, "__name__", type(function).__name__))
    if not callable(function) or _UNNAMED in name:
        kind = type(function).__name__
        told = "the function needs a name" if callable(function) else f"{name!r}: expected a function, not {kind}"
        raise InvalidConfigError(
            told, pointer=pointer, hint='Give metrics={"NAME": function}; it takes an output and returns a number.'
        )
    functions[name] = function
    return {"kind": "function", **{key: value for key, value in entry.items() if key != "function"}, "name": name}


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="quantmill-")


def output_path(path: str | Path | None, name: str) -> Path:
    """The path; None: ``name`` in a folder of its own, gone when this process ends.

    Raises:
        FileAccessError: its folder is not there, or it is a folder itself.
    """
    if path is None:
        return Path(tempfile.mkdtemp(dir=_temporary_folder().name)) / name
    if not Path(path).absolute().parent.is_dir():
        raise FileAccessError(f"{path} cannot be written: there is no such folder.", hint="Make it, or name another.")
    if Path(path).is_dir():
        raise FileAccessError(f"{path} is a folder.", hint=f"Name a file in it, such as {Path(path) / name}.")
    return Path(path)


def is_temporary(path: Path) -> bool:
    """True for a path that ``output_path`` made up."""
    return path.is_relative_to(_temporary_folder().name)


def model_file(model: Any, folder: Path) -> Path:
    """The path of the model; of one in memory a file is made.

    Raises:
        InvalidRequestError: it is neither.
    """
    if isinstance(model, str | os.PathLike):
        return Path(model).absolute()
    import onnx

    if not isinstance(model, onnx.ModelProto):
        raise InvalidRequestError(
            f"model: expected a path or an onnx.ModelProto, not {type(model).__name__}.",
            hint="A module of PyTorch is quantized by quantmill.torch.quantize(module, example_inputs, loader).",
        )
    path = folder / "model.onnx"
    large = model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    onnx.save(model, path, save_as_external_data=large)
    return path


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is quantized, on which data."""

    model: Path
    name: str
    calibration: DatasetSource | None
    evaluation: DatasetSource | None


def quantize_into(path: Path, order: Order, recipe: Recipe, options: WorkOptions) -> Quantized:
    """Quantize into ``path``, here or on the service of the options; further files lie beside it.

    Raises:
        InvalidConfigError: the config is not valid, or names nodes or modules that are not there.
        QuantmillError: whatever else the engine or the service refuses.
    """
    client, threads = options.get("client"), options.get("threads")
    if threads is not None and threads < 1:
        raise InvalidRequestError(f"threads: expected 1 or more, not {threads}.", hint="None: one per core.")
    if client is not None:
        check_no_function(recipe.config.evaluation)
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".quantmill-") as name:
            made = _by_service(client, order, recipe.config, Path(name))
            files = _beside(path, made.files)
            shutil.move(made.onnx_path, path)
        return Quantized(path, made.report, files)
    from worker.publishing import quantized
    from worker.quantizer.run.interface import Run, SilentRun

    given = options.get("run")
    run = SilentRun() if given is None else given
    if not isinstance(run, Run):
        raise InvalidRequestError(
            f"run: expected an object with the methods of Run, not {type(run).__name__}.",
            hint="worker.quantizer.run.interface.Run describes them; a subclass of SilentRun overrides what it needs.",
        )

    task = QuantizeTask(
        model_path=str(order.model.absolute()),
        config=recipe.config,
        calibration=order.calibration,
        evaluation=order.evaluation,
        output_dir="",
        threads=available_cores() if threads is None else threads,
    )
    with quantized(task, path, run, recipe.functions) as (done, folder):
        return Quantized(path, done.report, _beside(path, {file.kind: folder / file.file for file in done.files}))


def _beside(path: Path, files: Mapping[str, Path]) -> dict[str, Path]:
    """The files where they have been moved: beside ``path``."""
    return {kind: Path(shutil.move(file, path.with_name(f"{path.stem}.{file.name}"))) for kind, file in files.items()}


def _by_service(client: Client, order: Order, config: QuantizationConfig, folder: Path) -> Quantized:
    """Upload, wait, download into ``folder``."""
    model = client.push_model(order.model, name=order.name)
    datasets = [
        None if entry is None else client.push_dataset(Path(entry.path), entry.preprocessing)
        for entry in (order.calibration, order.evaluation)
    ]
    model_id = client.wait_ready(model).id
    calibration, evaluation = [None if dataset is None else client.wait_ready(dataset).id for dataset in datasets]
    job = client.submit(model=model_id, calibration=calibration, evaluation=evaluation, config=config, name=order.name)
    client.wait_succeeded(job.id)
    files = {}
    for item in client.artifacts(job.id):
        if item.kind in ("report", GRAPH_KIND):
            continue
        if not re.fullmatch(FILE_PATTERN, item.filename):
            raise DownloadCorruptError(
                f"The service names an artifact {item.filename!r}, which is not a valid file name.",
                hint=f"Download it by its id: {item.id}.",
            )
        files[item.kind] = folder / item.filename
        client.download_artifact(item.id, files[item.kind])
    onnx_path = files.pop("model")
    return Quantized(onnx_path, client.report(job.id), files)
