"""Selectors: the words by which a config names nodes."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Protocol, cast

import re2
from pydantic import Field, field_validator

from service.contracts.base import Contract
from service.contracts.validation import MOST_NAME_CHARS, MOST_NAMES

# Users' expressions are matched by RE2 alone, in time linear in the text: Python's own engine can take for ever over a
# few characters. Reference: Cox, Regular Expression Matching in the Wild (2010).
# Of one compiled expression: what does not fit is refused, after a fraction of a millisecond.
_MOST_MEMORY_BYTES = 64 << 10
MOST_CHARS = 1000


class PatternError(ValueError):
    """The pattern is not a regular expression, is too large, or cannot be matched in linear time."""


class Pattern(Protocol):
    """What is asked of a compiled expression."""

    def fullmatch(self, text: str) -> object | None:
        """Something, if the whole text matches."""
        ...


@lru_cache(maxsize=4096)
def compiled(text: str) -> Pattern:
    """The expression, ready to match.

    Raises:
        PatternError: says in words what is wrong with it.
    """
    if len(text) > MOST_CHARS:
        raise PatternError(f"longer than {MOST_CHARS} characters")
    options = re2.Options()
    options.max_mem, options.log_errors = _MOST_MEMORY_BYTES, False
    try:
        return cast(Pattern, re2.compile(text, options))
    except re2.error as error:
        told = error.args[0] if error.args else ""
        words = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        hint = "the syntax is RE2's, which has no look-around and no back-references"
        raise PatternError(f"{words} ({hint})") from None


Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME_CHARS)]


class NodeSelector(Contract):
    """Selects the node of this name."""

    node: Name


class RegexSelector(Contract):
    """Selects every node whose full name matches this regular expression in RE2 syntax. RE2 matches in linear time and
    does not support lookaround or backreferences.
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
    """Selects the node that outputs this tensor; for a weight or bias, the nodes that read it."""

    tensor: Name


class SubgraphSelector(Contract):
    """Selects every node on a path from one of ``from_nodes`` to one of ``to_nodes``, both ends included."""

    from_nodes: tuple[Name, ...] = Field(min_length=1, max_length=MOST_NAMES, description="Names of the first nodes.")
    to_nodes: tuple[Name, ...] = Field(min_length=1, max_length=MOST_NAMES, description="Names of the last nodes.")


class ModuleSelector(Contract):
    """Selects the nodes of this PyTorch module and all modules in it, such as ``encoder.layers.0``.

    The module path comes from the node metadata that torch.onnx.export writes (pkg.torch.onnx.name_scopes) or, for
    older exports, from the node names (/encoder/layers.0/...).
    """

    module: Name


Selector = NodeSelector | RegexSelector | OpTypeSelector | TensorSelector | SubgraphSelector | ModuleSelector
