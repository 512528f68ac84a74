"""A job that a command has submitted: its id, and with ``--wait`` its way to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.contracts.exits import GATE_EXITS
from worker.commands.json_output import print_json

if TYPE_CHECKING:
    from service.client import Client
    from service.contracts.evaluation_report import EvaluationReport
    from service.contracts.report import Report
    from service.jobs.schemas import EventOut, JobOut

FailOnGate = Annotated[
    bool, typer.Option("--fail-on-gate", help="Exit with 3 if the verdict is fail, with 4 if it is undecided.")
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="Wait no longer: exit with 5, while the job goes on in the service."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the job to its end, and print its report.")]


@dataclass(frozen=True)
class Waiting:
    """Whether a job is waited for, how long, and whether its verdict is an exit code."""

    wait: bool
    timeout: float | None
    fail_on_gate: bool

    def check(self) -> None:
        """Refuse what only a job that is waited for has.

        Raises:
            typer.BadParameter: naming the option.
        """
        for option, given in (("--timeout", self.timeout is not None), ("--fail-on-gate", self.fail_on_gate)):
            if given and not self.wait:
                raise typer.BadParameter(f"{option} is for a job that is waited for: give --wait.")


def finish(client: Client, job: JobOut, waiting: Waiting, *, as_json: bool, quiet: bool) -> None:
    """Print the job's id, or all of it; wait for its end if that is asked for, and print its report."""
    if not as_json:
        typer.echo(job.id)
    result = None if not waiting.wait else followed(client, job, timeout_seconds=waiting.timeout, quiet=quiet)
    if as_json:
        print_json(job if result is None else client.job(job))
    if result is not None:
        if not (as_json or quiet):
            print_result(result)
        check_gate(result, waiting.fail_on_gate)


def followed(
    client: Client,
    job: JobOut,
    *,
    timeout_seconds: float | None,
    quiet: bool,
    on_event: Callable[[EventOut], None] | None = None,
) -> Report | EvaluationReport:
    """Show a job's progress until it has ended; gives its report, of whichever kind it is."""
    from worker.commands import remote
    from worker.commands.console import ProgressView

    follow = remote.follow_evaluation if job.kind == "evaluate" else remote.follow
    with ProgressView(quiet=quiet) as view:
        return follow(client, job.id, view=view, timeout_seconds=timeout_seconds, on_event=on_event)


def print_result(result: Report | EvaluationReport, *, report_path: Path | None = None) -> None:
    """The report in short, of whichever kind it is."""
    from service.contracts.evaluation_report import EvaluationReport
    from worker.commands.console import print_report
    from worker.commands.evaluation_view import print_evaluation

    if isinstance(result, EvaluationReport):
        print_evaluation(result.to_json_dict())
    else:
        print_report(result, report_path=report_path)


def check_gate(result: Report | EvaluationReport, fail_on_gate: bool) -> None:
    """End with the code of the verdict, if that is asked for."""
    if fail_on_gate and result.verdict in GATE_EXITS:
        raise typer.Exit(GATE_EXITS[result.verdict])
