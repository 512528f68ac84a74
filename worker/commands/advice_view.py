"""Advice of a report, as the command line shows it."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from service.contracts.report import Advice, Report

_PRINTED = 3


def print_advice(report: Report, console: Console, path: Path | None = None) -> None:
    """What would help, with its figures, and how to apply it.

    Args:
        report: whole.
        console: to print on.
        path: where the report was written; None: nowhere.
    """
    for number, advice in enumerate(report.advice[:_PRINTED], 1):
        helped = {True: "green", False: "dim", None: ""}[advice.helped]
        console.print(Text.assemble(f"advice {number}  ", (advice.code, helped or "bold"), f": {advice.message}"))
        console.print(Text(f"  because {advice.because}"))
        console.print(Text(f"  {figure_words(advice)}"))
    if len(report.advice) > _PRINTED:
        console.print(Text(f"... and {len(report.advice) - _PRINTED} more in the report"))
    if any(advice.config for advice in report.advice):
        place = "REPORT.json" if path is None else shlex.quote(str(path))
        first = next(number for number, advice in enumerate(report.advice, 1) if advice.config)
        chosen = "" if first == 1 else f" --number {first}"
        console.print(Text(f"  apply it: quantmill apply-advice {place}{chosen} --output config.json"))


def figure_words(advice: Advice) -> str:
    """What trying it gave, or that nobody tried."""
    found = advice.figure
    if found is None:
        return "untried"
    unit = f" {found.unit}" if found.unit else ""
    before, after = (_number(value) for value in (found.before, found.after))
    told = f"tried: {found.metric} {before} -> {after}{unit} on {found.samples} samples, {found.seconds:.1f} s"
    return told if advice.helped else f"{told}; it did not help"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
