"""Reasons: why a node stays in float, why a pass did nothing, why a step was undone.

A kind of reason is declared beside the rule that gives it, under a code that programs may rely on; called with the
details of a case, it makes the ``Reason``. People read its words, programs its code: words may change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Reason:
    """Why something was not done."""

    code: str  # stable, in kebab case
    words: str  # one sentence, or the part of one that follows "because"
    hint: str | None = None  # what would help, or why nothing needs to
    by_design: bool = False  # nothing needs to be helped: so it is best

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class ReasonKind:
    """A reason with its details left open.

    Attributes:
        code: of every reason of this kind.
        template: the words, with details in braces.
        hint, by_design: as of ``Reason``.
    """

    code: str
    template: str
    hint: str | None = None
    by_design: bool = False

    def __call__(self, **details: object) -> Reason:
        """The reason with its details filled in."""
        return self.saying(self.template.format(**details))

    def saying(self, words: str) -> Reason:
        """The reason in other words, for a case that takes more of them than the template has."""
        return Reason(self.code, words, self.hint, self.by_design)


_declared: dict[str, ReasonKind] = {}


def declare(code: str, template: str, *, hint: str | None = None, by_design: bool = False) -> ReasonKind:
    """Declare a kind of reason; once per code.

    Raises:
        ValueError: the code is not in kebab case, or is taken.
    """
    if _CODE.fullmatch(code) is None or code in _declared:
        raise ValueError(f"{code!r} is no new code in kebab case")
    kind = _declared[code] = ReasonKind(code, template, hint, by_design)
    return kind


def declared() -> list[ReasonKind]:
    """Every kind that the modules loaded so far declare, by code."""
    return [_declared[code] for code in sorted(_declared)]
