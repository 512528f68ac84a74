"""Configs as users give them: a preset's name, an object, or a file in JSON, YAML or TOML, which all say the same."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from service.contracts.base import below
from service.contracts.command_errors import FileAccessError
from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidConfigError
from service.contracts.graph_files import with_graphs

Config = str | Path | Mapping[str, Any] | QuantizationConfig
# A config with graphs inside takes a few megabytes; what is larger is another file.
MAX_BYTES = 32 << 20
# Values that a document may have once its aliases are written out.
MAX_VALUES = 1_000_000
_MERGE, _EQUALS = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"
# What yaml calls a text in memory; the file is named before it.
_NAMELESS = ' in "<unicode string>"'
SMALLEST = 'The smallest config is {"preset": "int8"}, in YAML preset: int8, in TOML preset = "int8".'
_SUFFIXES = (".json", ".yaml", ".yml", ".toml")
_EXPECTED = 'Give the name of a preset, such as "int8", a dict, a QuantizationConfig, or the path of a config file.'


def config_file(config: Config | None) -> Path | None:
    """The file that a config is given as; None: it is given otherwise.

    Raises:
        InvalidConfigError: it looks like a path, but not like one of a config file.
    """
    if not isinstance(config, str | Path):
        return None
    path = Path(config)
    if path.suffix.lower() in _SUFFIXES:
        return path
    if isinstance(config, Path) or len(path.parts) > 1 or path.suffix or path.is_file():
        raise InvalidConfigError(
            f"{config} is not a config file.", hint="The name of a config file ends in .json, .yaml, .yml or .toml."
        )
    return None


def config_document(config: Config | None) -> dict[str, Any]:
    """A config as a request holds it, resolved or as sparse as it is; graphs that it names by path are in place.

    Raises:
        InvalidConfigError: it is none of the kinds of which a config is given, or the file is no such document.
        FileAccessError: its file cannot be read.
    """
    if config is None:
        return {}
    if isinstance(config, QuantizationConfig):
        return config.model_dump(mode="json")
    file = config_file(config)
    if file is not None:
        try:
            return file_document(file)
        except OSError as error:
            raise FileAccessError(f"{file} cannot be read: {error.strerror}.", hint="Check the path.") from None
    if isinstance(config, str):
        return {"preset": config}
    if not isinstance(config, Mapping):
        raise InvalidConfigError(f"A config was expected, not {type(config).__name__}.", hint=_EXPECTED)
    return dict(with_graphs(dict(config), Path()))


def file_document(file: Path) -> dict[str, Any]:
    """The config in a file, as sparse as it is; files that it names, from its folder on, are in place.

    Raises:
        InvalidConfigError: the file is no such document, or holds no object.
        OSError: it cannot be read.
    """
    with in_file(file):
        found = with_graphs(read_document(file), file.parent)
        if not isinstance(found, dict):
            raise InvalidConfigError(f"{file} contains no object.", hint=SMALLEST)
    return found


@contextmanager
def in_file(file: Path | None) -> Iterator[None]:
    """Have errors that point into a config name its file, and the line of the first."""
    try:
        yield
    except InvalidConfigError as error:
        if file is not None and error.errors:
            line = line_of(file, error.errors[0].pointer)
            error.where.setdefault("file", str(file) if line is None else f"{file}, line {line}")
            error.add_note(f"file: {error.where['file']}")  # shown behind a traceback, as the hint is
        raise


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
