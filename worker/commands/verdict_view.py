"""The verdict of a gate on a terminal: of a quantization, or of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from service.contracts.report import GateClause, Verdict
from worker.commands.figures import span

_HOLDS = {True: "holds", False: "BROKEN", None: "UNDECIDED"}
_STYLES = {"pass": "bold green", "fail": "bold red", "undecided": "bold yellow"}


def print_verdict(verdict: Verdict, gate: Iterable[GateClause], console: Console, *, summary: str = "") -> None:
    """The verdict, and each condition of the gate: whether it holds, what was wanted, what was got."""
    told = f"  {summary}" if summary else ""
    console.print(Text.assemble("verdict   ", (verdict, _STYLES.get(verdict, "bold")), told))
    for clause in gate:
        got = "not measured" if clause.got is None else f"{clause.got:g}"
        of = f" of {clause.metric}" if clause.metric else ""
        got += span(clause.interval)
        console.print(Text(f"  {_HOLDS[clause.holds]}: {clause.clause}{of} {clause.wanted:g}, got {got}"))
        if clause.why is not None:
            needed = "" if clause.samples_needed is None else f"; about {clause.samples_needed} samples would decide it"
            console.print(Text(f"    {clause.why}{needed}"))
