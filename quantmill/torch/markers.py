"""Operators that mean something to the exporter's reader and nothing to ONNX.

A marker is a custom operator of torch that survives ``torch.export``. It is translated into nodes of a domain of ours,
and resolved once the graph is whole: what it marks is written down, and the nodes go, so that any runtime can run the
model. Whoever defines such an operator registers it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True)
class Marker:
    """A family of marker operators.

    Attributes:
        name: of the family; registered once.
        resolve: takes the exported model, whose constants are folded and whose nodes carry their modules' paths, and
            removes the markers' nodes; changes the model in place.
        translations: what ``torch.onnx.export`` takes as custom_translation_table: the operator's overload -> a
            function of onnxscript that makes the marker's node.
    """

    name: str
    resolve: Callable[[ir.Model], None]
    translations: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)


_registered: dict[str, Marker] = {}


def register(marker: Marker) -> None:
    """Let all exports from now on translate and resolve ``marker``; one of the same name is replaced."""
    _registered[marker.name] = marker


def translation_table() -> dict[Any, Callable[..., Any]]:
    """The translations of all markers."""
    return {overload: made for marker in _registered.values() for overload, made in marker.translations.items()}


def resolve_all(model: ir.Model) -> None:
    """Resolve the markers in ``model``, in the order in which they were registered."""
    for marker in _registered.values():
        marker.resolve(model)
