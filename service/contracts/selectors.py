"""Selectors: the words by which a config names nodes."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from service.contracts.base import Contract


class NodeSelector(Contract):
    """Selects the node of this name."""

    node: str = Field(min_length=1)


class RegexSelector(Contract):
    """Selects every node whose whole name matches this regular expression."""

    regex: str = Field(min_length=1, max_length=1000)

    @field_validator("regex")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return text


class OpTypeSelector(Contract):
    """Selects every node of this operator type."""

    op_type: str = Field(min_length=1)


class TensorSelector(Contract):
    """Selects the node that makes this tensor, or, for a weight or bias, the nodes that read it."""

    tensor: str = Field(min_length=1)


class SubgraphSelector(Contract):
    """Selects every node on a path from one of ``from_nodes`` to one of ``to_nodes``, both ends included."""

    from_nodes: tuple[str, ...] = Field(min_length=1, max_length=1000, description="Names of the first nodes.")
    to_nodes: tuple[str, ...] = Field(min_length=1, max_length=1000, description="Names of the last nodes.")


class ModuleSelector(Contract):
    """Selects the nodes of this PyTorch module and all modules within it, e.g. ``encoder.layers.0``.

    The path is read from what torch.onnx.export records in the nodes' metadata
    (pkg.torch.onnx.name_scopes) or, for older exports, in the nodes' names (/encoder/layers.0/...).
    """

    module: str = Field(min_length=1)


Selector = NodeSelector | RegexSelector | OpTypeSelector | TensorSelector | SubgraphSelector | ModuleSelector
