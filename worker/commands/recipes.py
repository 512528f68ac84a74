"""Recipes and preprocessing as files of a command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from service.contracts.config import QuantizationConfig, parse_config, with_ranges
from service.contracts.dataset import PreprocessingSpec, parse_preprocessing
from service.contracts.documents import in_file, read_document
from service.contracts.errors import InvalidRequestError, QuantmillError, of_role
from service.contracts.graph_files import with_graphs
from service.contracts.preprocessing import is_name
from service.contracts.runner import DatasetSource
from service.quark import Translation, read_config, translate_document, use_quark_words
from worker.commands.files import NOWHERE, ExtraPlace
from worker.commands.report_files import read_report

REQUEST_CONFIG = "/config"


@dataclass(frozen=True)
class Recipe:
    """A config, and what the user wrote."""

    config: QuantizationConfig  # resolved
    file: Path | None = None  # that it comes from
    translation: Translation | None = None  # of the file, if it is a config of AMD Quark

    @contextmanager
    def pointing_into_file(self) -> Iterator[None]:
        """Have errors that checks of the config raise point into the file."""
        with in_file(self.file):
            try:
                yield
            except QuantmillError as error:
                if self.file is not None:
                    error.relocate(self._place)
                if self.translation is not None:
                    use_quark_words(error)
                raise

    def _place(self, pointer: str) -> str:
        """Checks point into a request, where the config stands under /config."""
        inner = pointer.removeprefix(REQUEST_CONFIG)
        if inner.split("/")[1:2] and inner.split("/")[1] not in QuantizationConfig.model_fields:
            return pointer
        return inner if self.translation is None else self.translation.origin(inner, "")


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A quantization as the command line has it."""

    model: Path  # a file
    config: QuantizationConfig  # resolved
    calibration: DatasetSource | None  # None: the config calibrates on random data, or nothing
    evaluation: DatasetSource | None  # None: nothing is measured
    output: Path  # where the quantized model goes
    extra: ExtraPlace = NOWHERE  # where further files go
    state: Path | None = None  # new weights for the model's graph
    ranges_from: str | None = None  # whose calibrated ranges are taken over: a report's file; of a service, a job


@dataclass(frozen=True)
class Measurement:
    """An evaluation as the command line has it: of a model, beside a reference, by the metrics of a config's file."""

    model: Path
    evaluation: Path
    preprocessing: PreprocessingSpec
    reference: Path | None
    config: Path | None


def load_recipe(preset: str | None, file: Path | None) -> Recipe:
    """The resolved config of a preset, of a file (JSON, YAML, TOML), or of neither: the default preset.

    Raises:
        InvalidConfigError: the file is no such document, or the config is not valid.
    """
    if file is None:
        return Recipe(parse_config({} if preset is None else {"preset": preset}))
    with in_file(file):
        document = read_document(file)
        translation = translate_document(document)
        for note in translation.notes if translation is not None else ():
            typer.echo(f"note: {file}: {note}", err=True)
        return Recipe(read_config(with_graphs(document, file.parent)), file, translation)


def load_preprocessing(text: str | None) -> PreprocessingSpec:
    """The preprocessing given as JSON text, as the path of a JSON file, or by name; names come before files.

    Raises:
        InvalidRequestError: it is no JSON, not a valid spec, or neither a name nor a file.
    """
    if text is None:
        return PreprocessingSpec()
    is_json = text.lstrip().startswith("{")
    if is_name(text) or not (is_json or "/" in text or text.endswith(".json") or Path(text).exists()):
        return parse_preprocessing(text)
    return parse_preprocessing(text if is_json else Path(text).read_text(), is_json=True)


def with_ranges_of(config: QuantizationConfig, report: Path) -> QuantizationConfig:
    """``config`` with the calibrated ranges of a report.

    Raises:
        InvalidRequestError: the file is no report, or it tells no ranges.
        InvalidConfigError: the config takes no ranges.
    """
    ranges = read_report(report).tensor_ranges
    if not ranges:
        raise InvalidRequestError(
            f"{report} contains no calibrated ranges.", hint="Give the report of a run with mode static."
        )
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
        with of_role(f"{word} dataset"):
            pack_folder(path, archive)
        yield archive


def source(path: Path, preprocessing: PreprocessingSpec) -> DatasetSource:
    """A dataset file of the command line."""
    return DatasetSource(path=str(path.absolute()), preprocessing=preprocessing)
