"""Kinds of findings: declared beside the check that gives them, under a code that programs may rely on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.contracts.report.layers import Finding, Severity

_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class FindingKind:
    """A finding with its details left open."""

    code: str  # of every finding of this kind
    severity: Severity  # how bad it is
    template: str  # the message, with details in braces
    hint: str  # what to do, with the same details
    undermines_verdict: bool = False  # no statement about accuracy can be made

    def __call__(self, where: Mapping[str, str | int | float] | None = None, **details: object) -> Finding:
        """The finding with its details filled in; ``where`` names what it is about."""
        return Finding(
            code=self.code,
            severity=self.severity,
            message=self.template.format(**details),
            hint=self.hint.format(**details),
            where=dict(where or {}),
            undermines_verdict=self.undermines_verdict,
        )


_declared: dict[str, FindingKind] = {}


def declare(
    code: str, severity: Severity, template: str, *, hint: str, undermines_verdict: bool = False
) -> FindingKind:
    """Declare a kind of finding; once per code.

    Raises:
        ValueError: the code is not in kebab case, or is taken.
    """
    if _CODE.fullmatch(code) is None or code in _declared:
        raise ValueError(f"{code!r} is no new code in kebab case")
    kind = _declared[code] = FindingKind(code, severity, template, hint, undermines_verdict)
    return kind


def declared() -> list[FindingKind]:
    """Every kind that the modules loaded so far declare, the worst first, then by code."""
    return sorted(_declared.values(), key=lambda kind: (_ORDER[kind.severity], kind.code))


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings without repetition, critical ones first, else in their order."""
    once = {(found.code, found.message): found for found in findings}
    return tuple(sorted(once.values(), key=lambda found: _ORDER[found.severity]))
