"""Quantize and evaluate in this very process: the engine that the service runs, without the service."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import (
    InvalidConfigError,
    InvalidRequestError,
    QuantmillError,
    problem_summary,
)
from service.contracts.metrics.graph import MAX_INLINE_BYTES
from service.contracts.named_preprocessing import is_name
from service.contracts.ranges import with_ranges
from service.contracts.runner import DatasetSource, QuantizeTask
from service.contracts.validation import field_problems
from service.quark import Translation, read_config, translate_document
from worker.commands.config_files import read_document
from worker.commands.console import ProgressView
from worker.commands.files import NOWHERE, Done, ExtraPlace, data_name, move_files, publish, publish_data
from worker.commands.report_files import read_report


@dataclass(frozen=True)
class Keep:
    """Folders for what a run in this process leaves to other runs; each is made if it is not there.

    Attributes:
        checkpoint_dir: keeps finished work for the same command, started again; None: nothing is kept.
        cache_dir: keeps what was computed for any other command; None: nothing is kept.
        cache_bytes: what the cache may take; None: no limit.
    """

    checkpoint_dir: Path | None = None
    cache_dir: Path | None = None
    cache_bytes: int | None = None


NOTHING = Keep()
REQUEST_CONFIG = "/config"


@dataclass(frozen=True)
class Recipe:
    """A config, and what the user wrote.

    Attributes:
        config: resolved.
        of_file: True if it comes from a file.
        translation: of the file, if it is a config of AMD Quark.
    """

    config: QuantizationConfig
    of_file: bool = False
    translation: Translation | None = None

    @contextmanager
    def pointing_into_file(self) -> Iterator[None]:
        """Have errors that checks of the config raise point into the file."""
        try:
            yield
        except QuantmillError as error:
            if self.of_file:
                error.relocate(self._place)
            raise

    def _place(self, pointer: str) -> str:
        """Checks point into a request, where the config stands under /config."""
        inner = pointer.removeprefix(REQUEST_CONFIG)
        if inner.split("/")[1:2] and inner.split("/")[1] not in QuantizationConfig.model_fields:
            return pointer
        return inner if self.translation is None else self.translation.origin(inner, "")


def load_config(preset: str | None, file: Path | None) -> QuantizationConfig:
    """The config of ``load_recipe``."""
    return load_recipe(preset, file).config


def load_recipe(preset: str | None, file: Path | None) -> Recipe:
    """The resolved config of a preset, of a file (JSON, YAML, TOML), or of neither: the default preset.

    Raises:
        InvalidConfigError: the file is no such document, or the config is not valid.
    """
    if file is None:
        return Recipe(parse_config({} if preset is None else {"preset": preset}))
    document = read_document(file)
    translation = translate_document(document)
    for note in translation.notes if translation is not None else ():
        typer.echo(f"note: {file}: {note}", err=True)
    return Recipe(read_config(_with_graphs(document, file.parent)), of_file=True, translation=translation)


def sparse_recipe(file: Path) -> Any:
    """The document of a recipe's file as sparse as it is, for a service to resolve; files that it names are in place.

    Raises:
        InvalidConfigError: the file is no such document.
    """
    return _with_graphs(read_document(file), file.parent)


def recipe_document(file: Path) -> dict[str, Any]:
    """The same where it has to be an object.

    Raises:
        InvalidRequestError: it is none.
    """
    found = sparse_recipe(file)
    if not isinstance(found, dict):
        raise InvalidRequestError(f"{file} holds no object.", hint='A recipe is an object, such as {"seed": 7}.')
    return found


def _with_graphs(document: Any, folder: Path) -> Any:
    """The document with the files of metrics and losses that are given as graphs by path, from ``folder`` on, in place.

    Raises:
        InvalidConfigError: a file cannot be read, or is too large.
    """
    if not isinstance(document, dict):
        return document
    filled = dict(document)
    if isinstance(evaluation := document.get("evaluation"), dict):
        filled["evaluation"] = _with_files(evaluation, "metrics", folder, "/evaluation")
    if isinstance(algorithms := document.get("algorithms"), list):
        filled["algorithms"] = [
            _with_files(entry, "losses", folder, f"/algorithms/{k}") for k, entry in enumerate(algorithms)
        ]
    return filled


def _with_files(holder: Any, key: str, folder: Path, pointer: str) -> Any:
    """``holder`` with the graphs of what it lists under ``key``; left as it is where it lists nothing."""
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        return holder
    listed = [_with_graph(entry, folder, f"{pointer}/{key}/{k}/graph") for k, entry in enumerate(holder[key])]
    return {**holder, key: listed}


def _with_graph(given: Any, folder: Path, pointer: str) -> Any:
    graph = given.get("graph") if isinstance(given, dict) else None
    if not isinstance(graph, dict) or not isinstance(graph.get("path"), str):
        return given
    path = folder / graph["path"]
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_INLINE_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(
            f"the graph cannot be read: {path}: {error.strerror}",
            pointer=f"{pointer}/path",
            hint="Paths go from the folder of the config on.",
        ) from None
    if len(data) > MAX_INLINE_BYTES:
        raise InvalidConfigError(
            f"the graph is larger than {MAX_INLINE_BYTES} bytes: {path}",
            pointer=f"{pointer}/path",
            hint="Upload it as a model to a service, and give its model_id.",
        )
    rest = {key: value for key, value in graph.items() if key != "path"}
    return {**given, "graph": {**rest, "base64": base64.b64encode(data).decode()}}


def load_preprocessing(text: str | None) -> PreprocessingSpec:
    """The preprocessing given as JSON text, as the path of a JSON file, or by name; names come before files.

    Raises:
        InvalidRequestError: it is no JSON, not a valid spec, or neither a name nor a file.
    """
    if text is None:
        return PreprocessingSpec()
    try:
        if is_name(text) or not (text.lstrip().startswith("{") or _looks_like_file(text)):
            return PreprocessingSpec.model_validate(text)
        document = text if text.lstrip().startswith("{") else Path(text).read_text()
        return PreprocessingSpec.model_validate_json(document)
    except ValidationError as error:
        problems = field_problems(error, PreprocessingSpec, pointer="/preprocessing")
        raise InvalidRequestError(
            problem_summary(problems),
            errors=problems,
            hint='For images: {"inputs": {"INPUT": {"layout": "NHWC", "scale": 0.00392156862745098}}}',
        ) from None


def _looks_like_file(text: str) -> bool:
    return "/" in text or text.endswith(".json") or Path(text).exists()


def quantize(
    model: Path,
    *,
    config: QuantizationConfig,
    calibration: DatasetSource | None,
    evaluation: DatasetSource | None,
    output: Path,
    threads: int,
    view: ProgressView,
    extra: ExtraPlace = NOWHERE,
    keep: Keep = NOTHING,
) -> Done:
    """Quantize ``model`` into ``output``, which appears whole or not at all.

    Raises:
        FileAccessError: a further file has the name of another one of the command.
        QuantmillError: whatever the engine refuses.
    """
    from worker.quantizer.command import quantize_files

    with tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=".quantmill-") as folder:
        task = QuantizeTask(
            model_path=str(model.absolute()),
            config=config,
            calibration=calibration,
            evaluation=evaluation,
            output_dir=folder,
            threads=threads,
            checkpoint_dir=_made(keep.checkpoint_dir),
            cache_dir=_made(keep.cache_dir),
            cache_bytes=keep.cache_bytes,
            data_file=data_name(output),
            graph=extra.folder is not None,
        )
        result = quantize_files(task, view)
        publish_data(result, Path(folder), output)
        publish(Path(folder) / result.model_file, output)
        return move_files(result, Path(folder), extra)


def _made(folder: Path | None) -> str | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder.absolute())


def evaluate(
    model: Path,
    *,
    evaluation: Path,
    preprocessing: PreprocessingSpec,
    reference: Path | None,
    config: Path | None,
    threads: int,
    view: ProgressView,
) -> dict[str, Any]:
    """Metrics of ``model`` and, with a reference, its fidelity to it; ready for JSON.

    Raises:
        QuantmillError: whatever the engine refuses.
    """
    from worker.quantizer.evaluation.command import evaluate_files

    reference = None if reference is None else reference.absolute()
    recipe = load_recipe(None, config)
    with recipe.pointing_into_file(), packed(evaluation, "evaluation") as path:
        data, spec = source(path, preprocessing), recipe.config.evaluation
        return evaluate_files(model.absolute(), data, reference, threads=threads, run=view, spec=spec)


@contextmanager
def filled(model: Path, state: Path) -> Iterator[Path]:
    """The model's graph with the weights of ``state``, in a temporary file.

    Raises:
        StateError: the weights do not fit; names each tensor.
    """
    from worker.quantizer.intake.made import fill

    with tempfile.TemporaryDirectory(prefix="quantmill-state-") as folder:
        yield fill(model, state, Path(folder) / model.name)[0]


def with_ranges_of(config: QuantizationConfig, report: Path) -> QuantizationConfig:
    """``config`` with the calibrated ranges of a report.

    Raises:
        InvalidRequestError: the file is no report, or it tells no ranges.
        InvalidConfigError: the config takes no ranges.
    """
    ranges = read_report(report).tensor_ranges
    if not ranges:
        raise InvalidRequestError(f"{report} tells no calibrated ranges.", hint="Give the report of a static run.")
    return with_ranges(config, ranges)


@contextmanager
def packed(path: Path, word: str) -> Iterator[Path]:
    """The file of a dataset: ``path`` itself, or a temporary archive ``word``.tar of the folder that it is.

    Raises:
        DatasetError: the folder holds what cannot be used; names it.
    """
    if not path.is_dir():
        yield path
        return
    from worker.quantizer.data.media.packing import pack_folder

    with tempfile.TemporaryDirectory(prefix="quantmill-pack-") as folder:
        archive = Path(folder) / f"{word}.tar"
        pack_folder(path, archive)
        yield archive


def source(path: Path, preprocessing: PreprocessingSpec) -> DatasetSource:
    """A dataset file of the command line."""
    return DatasetSource(path=str(path.absolute()), preprocessing=preprocessing)
