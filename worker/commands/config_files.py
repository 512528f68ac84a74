"""Config documents in files: JSON, YAML or TOML, by the file's ending. All of them say the same."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from service.contracts.errors import InvalidConfigError
from service.contracts.pointers import below

# A config with graphs inside takes a few megabytes; what is larger is another file.
MAX_BYTES = 32 << 20
# Values that a document may have once its aliases are written out.
MAX_VALUES = 1_000_000
_MERGE, _EQUALS = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"
SMALLEST = 'The smallest config is {"preset": "int8"}, in YAML preset: int8, in TOML preset = "int8".'


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
            f"{path} is larger than {MAX_BYTES >> 20} MiB, which no config is.", hint="Give the config's own file."
        )
    word, parse = _FORMATS.get(path.suffix.lower(), ("JSON", json.loads))
    try:
        document = parse(data.decode("utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        told = " ".join(str(error).split()) or type(error).__name__
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
                raise yaml.constructor.ConstructorError(None, None, "a key is no text", key_node.start_mark)
            if key in found:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
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
        raise ValueError("a value holds itself")
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
                    f"the key {key!r} is no text", pointer=pointer, hint="Write it between quotation marks."
                )
            _check(inner, below(pointer, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _check(inner, below(pointer, place))
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise InvalidConfigError(
            f"a {type(value).__name__} has no place in a config",
            pointer=pointer,
            hint="Write it as text or number.",
        )
