"""Selectors: the words by which a config names nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from service.contracts.base import MOST_CHARS, Contract, PatternError, compiled
from service.contracts.validation import MOST_NAME_CHARS, MOST_NAMES

Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME_CHARS)]


class NodeSelector(Contract):
    """Selects the node of this name."""

    node: Name


class RegexSelector(Contract):
    """Selects every node whose whole name matches this regular expression, in the syntax of RE2.

    RE2 matches in linear time, and knows no look-around and no back-references.
    """

    regex: str = Field(min_length=1, max_length=MOST_CHARS)

    @field_validator("regex")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            compiled(text)
        except PatternError as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return text


class OpTypeSelector(Contract):
    """Selects every node of this operator type."""

    op_type: Name


class TensorSelector(Contract):
    """Selects the node that makes this tensor, or, for a weight or bias, the nodes that read it."""

    tensor: Name


class SubgraphSelector(Contract):
    """Selects every node on a path from one of ``from_nodes`` to one of ``to_nodes``, both ends included."""

    from_nodes: tuple[Name, ...] = Field(min_length=1, max_length=MOST_NAMES, description="Names of the first nodes.")
    to_nodes: tuple[Name, ...] = Field(min_length=1, max_length=MOST_NAMES, description="Names of the last nodes.")


class ModuleSelector(Contract):
    """Selects the nodes of this PyTorch module and all modules within it, e.g. ``encoder.layers.0``.

    The path is read from what torch.onnx.export records in the nodes' metadata
    (pkg.torch.onnx.name_scopes) or, for older exports, in the nodes' names (/encoder/layers.0/...).
    """

    module: Name


Selector = NodeSelector | RegexSelector | OpTypeSelector | TensorSelector | SubgraphSelector | ModuleSelector
