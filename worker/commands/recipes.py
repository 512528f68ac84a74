"""Recipes and preprocessing as files: JSON, YAML or TOML by the file's ending, which all say the same."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from service.contracts.base import below
from service.contracts.config import QuantizationConfig, parse_config, with_ranges
from service.contracts.dataset import PreprocessingSpec, parse_preprocessing
from service.contracts.errors import InvalidConfigError, InvalidRequestError, QuantmillError, of_role
from service.contracts.graph_files import with_graphs
from service.contracts.preprocessing import is_name
from service.contracts.runner import DatasetSource
from service.quark import Translation, read_config, translate_document, use_quark_words
from worker.commands.files import NOWHERE, ExtraPlace
from worker.commands.report_files import read_report

# A config with graphs inside takes a few megabytes; what is larger is another file.
MAX_BYTES = 32 << 20
# Values that a document may have once its aliases are written out.
MAX_VALUES = 1_000_000
_MERGE, _EQUALS = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"
SMALLEST = 'The smallest config is {"preset": "int8"}, in YAML preset: int8, in TOML preset = "int8".'
REQUEST_CONFIG = "/config"
# What yaml calls a text in memory; the file is named before it.
_NAMELESS = ' in "<unicode string>"'


@dataclass(frozen=True)
class Recipe:
    """A config, and what the user wrote."""

    config: QuantizationConfig  # resolved
    file: Path | None = None  # that it comes from
    translation: Translation | None = None  # of the file, if it is a config of AMD Quark

    @contextmanager
    def pointing_into_file(self) -> Iterator[None]:
        """Have errors that checks of the config raise point into the file."""
        with _in_file(self.file):
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
    with _in_file(file):
        document = read_document(file)
        translation = translate_document(document)
        for note in translation.notes if translation is not None else ():
            typer.echo(f"note: {file}: {note}", err=True)
        return Recipe(read_config(with_graphs(document, file.parent)), file, translation)


@contextmanager
def _in_file(file: Path | None) -> Iterator[None]:
    """Have errors that point into a config name its file, and the line of the first."""
    try:
        yield
    except InvalidConfigError as error:
        if file is not None and error.errors:
            line = line_of(file, error.errors[0].pointer)
            error.where.setdefault("file", str(file) if line is None else f"{file}, line {line}")
        raise


def recipe_document(file: Path) -> dict[str, Any]:
    """The document of a recipe's file as sparse as it is, for a service to resolve; files that it names are in place.

    Raises:
        InvalidConfigError: the file is no such document.
        InvalidRequestError: it holds no object.
    """
    with _in_file(file):
        found = with_graphs(read_document(file), file.parent)
    if not isinstance(found, dict):
        raise InvalidRequestError(f"{file} contains no object.", hint='A config is an object, such as {"seed": 7}.')
    return found


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


def read_document(path: Path) -> Any:
    """The document in a file, as if it had been JSON.

    Raises:
        InvalidConfigError: it is larger than any config, not of the format that its ending says, or holds what JSON has
            no word for.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidConfigError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB, the limit of a config.", hint="Check the path."
        )
    word, parse = _FORMATS.get(path.suffix.lower(), ("JSON", json.loads))
    try:
        document = parse(data.decode("utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        told = " ".join(str(error).split()).replace(_NAMELESS, "") or type(error).__name__
        raise InvalidConfigError(f"{path} is not a {word} document: {told}", hint=SMALLEST) from None
    _check(document, "")
    return document


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml comes without types
    """YAML of plain values, in which no key is written twice; moments stay the text that they are."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._looked_at: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what is merged (``<<``) before what is written, which overrides it.

        Keys are looked at once and before that: afterwards, those that are overridden stand twice.
        """
        if id(node) not in self._looked_at:
            self._looked_at.add(id(node))
            self._refuse_keys(node)
        super().flatten_mapping(node)

    def _refuse_keys(self, node: yaml.MappingNode) -> None:
        found = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            # Flattening makes the text "=" of it.
            key = "=" if key_node.tag == _EQUALS else self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a string", key_node.start_mark)
            if key in found:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            found.add(key)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key_node, deep=True): loader.construct_object(value_node, deep=True)
        for key_node, value_node in node.value
    }


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))


def _parse_yaml(text: str) -> Any:
    """Refuses documents that a few aliases of aliases blow up, before anything is made of them."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {}, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """Values of the node with all aliases written out.

    Raises:
        ValueError: there are too many, or a node holds itself.
    """
    if id(node) in open_nodes:
        raise ValueError("a value contains itself")
    if id(node) in known:
        return known[id(node)]
    open_nodes.add(id(node))
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    total = 1
    for child in children:
        total += _count(child, known, open_nodes)
        if total > MAX_VALUES:
            raise ValueError(f"with its aliases written out it has more than {MAX_VALUES} values")
    open_nodes.discard(id(node))
    known[id(node)] = total
    return total


def line_of(file: Path, pointer: str) -> int | None:
    """The line, from 1, of what a JSON pointer names in a JSON or YAML file, or of what should hold it.

    None where it cannot be told, as in TOML. JSON is read as YAML, which tells where things are.
    """
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    line = None if node is None else node.start_mark.line + 1
    for part in (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
        entry = _entry(node, part)
        if entry is None:
            break
        key, node = entry
        line = key.start_mark.line + 1
    return line


def _entry(node: yaml.Node, part: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The key of a mapping and its value, or the item of a list twice."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)], node.value[int(part)]
    return None


_FORMATS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".yaml": ("YAML", _parse_yaml),
    ".yml": ("YAML", _parse_yaml),
    ".toml": ("TOML", tomllib.loads),
}


def _check(value: Any, pointer: str) -> None:
    """Only what JSON has a word for."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidConfigError(
                    f"the key {key!r} is not a string", pointer=pointer, hint="Put it in quotation marks."
                )
            _check(inner, below(pointer, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _check(inner, below(pointer, place))
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise InvalidConfigError(
            f"a {type(value).__name__} is not allowed in a config",
            pointer=pointer,
            hint="Write it as a string or a number.",
        )
