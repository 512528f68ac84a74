"""Models and forms that were measured beside the planned ones, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from service.contracts.report import Report
from service.reports import choices


def print_choices(report: Report, console: Console) -> None:
    """The models that might be returned, and both forms of products with weights in blocks."""
    if report.fallback is not None:
        for sentence in choices.sentences(report.fallback):
            console.print(Text(f"fallback  {sentence}"))
        for candidate in choices.candidates(report.fallback):
            mark = "->" if candidate.result else "  "
            told = f"{candidate.latency} of float, {candidate.size}, other conditions: {candidate.holds}"
            console.print(Text(f"  {mark} {candidate.words}: {told}"))
    if report.kernels is not None:
        console.print(Text(f"kernels   {choices.kernels_words(report.kernels)}"))
        for form in choices.forms(report.kernels):
            console.print(Text(f"  {form.form}: {form.latency}, {form.ratio} of float, SQNR {form.sqnr}"))
