"""Jobs to their end: waited for or followed, judged, and what they gave as files of this host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from service.contracts.command_errors import GATE_EXITS
from worker.commands import options
from worker.commands.command import ResultPrinting, Service, job_id
from worker.commands.options import ExtraDir, JobId
from worker.commands.printing import print_json, print_line
from worker.commands.report_files import ReportFiles, write_json, write_whole

if TYPE_CHECKING:
    from service.client import Client
    from service.contracts.evaluation_report import EvaluationReport
    from service.contracts.report import Report
    from service.jobs.schemas import EventOut, JobOut

FailOnGate = Annotated[
    bool,
    typer.Option(
        "--fail-on-gate",
        help="Exit with code 3 if the verdict is fail, 4 if it is undecided or a critical finding allows none.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="Stop waiting after this time: exit with code 5; the job continues."),
]
Output = Annotated[Path | None, typer.Option(metavar="Q.onnx", help="Download the quantized model to this file.")]
ReportPath = Annotated[Path | None, typer.Option(metavar="R.json", help="Write the report as JSON to this file.")]
Events = Annotated[bool, typer.Option("--json", help="Print one JSON object per event, as they happen.")]


@dataclass(frozen=True, kw_only=True)
class EventPrinting(ResultPrinting):
    """The same, with events in place of the job."""

    json: Events = False


# What stands behind the name of a file in the name of its attestation.
SUFFIX = ".intoto.jsonl"
# Why a service signs nothing; its jobs are good all the same.
_UNSIGNED = ("signing-unavailable", "signing-key-unreadable")
_NOT_FOUND = 404


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How long a job is followed, and whether its verdict is an exit code."""

    timeout: Timeout = None
    fail_on_gate: FailOnGate = False


@dataclass(frozen=True, kw_only=True)
class WaitOptions:
    """Whether a job is waited for, how long, and whether its verdict is an exit code."""

    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the job until it ends and print the summary of its report.")
    ] = False
    timeout: Timeout = None
    fail_on_gate: FailOnGate = False
    word: ClassVar[str] = "job"

    def check(self) -> None:
        """Refuse what only a job that is waited for has.

        Raises:
            typer.BadParameter: naming the option.
        """
        for option, given in (("--timeout", self.timeout is not None), ("--fail-on-gate", self.fail_on_gate)):
            if given and not self.wait:
                raise typer.BadParameter(f"{option} requires --wait.")


def finish(client: Client, job: JobOut, waiting: WaitOptions, printing: ResultPrinting) -> None:
    """Print the job's id, or all of it; wait for its end if that is asked for, and print its result."""
    if not printing.json:
        typer.echo(job.id)
    if not waiting.wait:
        if printing.json:
            print_json(job)
        return
    result = followed(client, job, timeout_seconds=waiting.timeout, quiet=printing.quiet, verbose=printing.verbose)
    if printing.json:
        print_json(client.job(job))
    elif not printing.quiet:
        print_result(result, verbose=printing.verbose)
    check_gate(judged(result), waiting.fail_on_gate, quiet=printing.quiet)


def followed(
    client: Client,
    job: JobOut,
    *,
    timeout_seconds: float | None,
    quiet: bool,
    verbose: bool = False,
    on_event: Callable[[EventOut], None] | None = None,
) -> Report | EvaluationReport:
    """Show a job's progress until it has ended; gives its report, of whichever kind it is."""
    from worker.commands import remote
    from worker.commands.console import ProgressView

    with ProgressView(quiet=quiet, verbose=verbose) as view:
        remote.follow(client, job.id, view=view, timeout_seconds=timeout_seconds, on_event=on_event)
    return client.evaluation_report(job.id) if job.kind == "evaluate" else client.report(job.id)


def print_result(result: Report | EvaluationReport, *, verbose: bool = False, report_path: Path | None = None) -> None:
    """An evaluation's figures, or a quantization's summary; the whole report where ``verbose``."""
    from service.contracts.evaluation_report import EvaluationReport
    from worker.commands.report_view import print_evaluation, print_report
    from worker.commands.summary import print_summary

    if isinstance(result, EvaluationReport):
        print_evaluation(result.to_json_dict())
    else:
        (print_report if verbose else print_summary)(result, report_path=report_path)


def check_gate(verdict: str, fail_on_gate: bool, *, quiet: bool = False) -> None:
    """End with the code of the verdict, if that is asked for; else say that a script cannot tell."""
    code = GATE_EXITS.get(verdict)
    if code is not None and fail_on_gate:
        raise typer.Exit(code)
    if code is not None and not quiet:
        word = "The gate failed" if verdict == "fail" else "There is no verdict on accuracy"
        typer.echo(f"{word} (exit code 0; with --fail-on-gate, for CI, it is {code:d}).", err=True)


def judged(result: Report | EvaluationReport) -> str:
    """The verdict; without a gate, undecided where a critical finding allows no statement about accuracy."""
    from service.contracts.report import Report

    if result.verdict != "none" or not isinstance(result, Report):
        return result.verdict
    return "undecided" if any(finding.undermines_verdict for finding in result.critical_findings) else "none"


def follow(
    job: JobId,
    service: Service,
    output: Output = None,
    report: ReportPath = None,
    extra_dir: ExtraDir = None,
    *,
    judging: Judging,
    printing: EventPrinting,
) -> None:
    """Follow a job until it ends and print the summary of its report."""
    from service.contracts.report import Report
    from worker.commands.files import ExtraPlace, download_files, print_files

    _check_places(output, report, extra_dir, ReportFiles())
    with service.connected() as client:
        job = job_id(client, job)
        found = client.job(job)
        if found.kind == "evaluate":
            _refuse_files({"--output": output, "--extra-dir": extra_dir})
        tell, quiet = print_line if printing.json else None, printing.quiet or printing.json
        result = followed(
            client, found, timeout_seconds=judging.timeout, quiet=quiet, verbose=printing.verbose, on_event=tell
        )
        done = None
        if isinstance(result, Report):
            if output is not None:
                client.download(job, output)
            protected = tuple(path for path in (output, report) if path is not None)
            done = download_files(client, job, result, ExtraPlace(extra_dir, protected))
    if report is not None:
        write_json(report, result.to_json_dict())
    if not quiet:
        print_result(result, verbose=printing.verbose, report_path=report)
        if done is not None:
            print_files(done)
    check_gate(judged(result), judging.fail_on_gate, quiet=quiet)


def fetch(
    job: JobId,
    service: Service,
    output: Output = None,
    report: ReportPath = None,
    *,
    forms: ReportFiles,
    extra_dir: ExtraDir = None,
    safetensors: Annotated[
        Path | None,
        typer.Option(metavar="W.safetensors", help="Write the quantized weights to this file; requires --output."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Download the results of a job: model, attestation, report and further files."""
    if safetensors is not None and output is None:
        raise typer.BadParameter("--safetensors requires --output.")
    if all(place is None for place in (output, report, extra_dir, *forms.by_option.values())):
        raise typer.BadParameter("Give what to download: --output, --report, --html, --extra-dir ...")
    _check_places(output, report, extra_dir, forms)
    if safetensors is not None:
        options.output_path(safetensors)
        options.distinct_paths({"--output": output, "--report": report, "--safetensors": safetensors}, {})
    with ExitStack() as stack:
        client = stack.enter_context(service.connected())
        job = job_id(client, job)
        if json:
            stack.enter_context(redirect_stdout(sys.stderr))  # what tells people of each file
        if client.job(job).kind == "evaluate":
            _refuse_files({"--output": output, "--extra-dir": extra_dir, **forms.by_option})
            result: Report | EvaluationReport = client.evaluation_report(job)
            written: list[tuple[str, Path]] = []
        else:
            result = client.report(job)
            written = _fetch_files(client, job, result, output, safetensors, report, forms, extra_dir)
        if report is not None:
            write_json(report, result.to_json_dict())
            typer.echo(f"report    {report}")
            written.append(("report", report))
    if json:
        files = [{"kind": kind, "path": str(path)} for kind, path in written]
        print_json({"job": job, "verdict": result.verdict, "files": files})


def _fetch_files(
    client: Client,
    job: str,
    result: Report,
    output: Path | None,
    safetensors: Path | None,
    report: Path | None,
    forms: ReportFiles,
    extra_dir: Path | None,
) -> list[tuple[str, Path]]:
    """All that a quantization gave but its report as JSON, each with its kind."""
    from worker.commands.files import ExtraPlace, download_files, print_files

    written: list[tuple[str, Path]] = []
    attestation = None if output is None else attestation_path(output)
    if output is not None and attestation is not None:
        client.download(job, output)
        typer.echo(f"model     {output}")
        written.append(("model", output))
        if download_attestation(client, job, attestation):
            written.append(("attestation", attestation))
        if safetensors is not None:
            _write_weights(output, safetensors)
            written.append(("weights", safetensors))
    own = (output, attestation, report, safetensors, *forms.paths)
    protected = tuple(path for path in own if path is not None)
    done = download_files(client, job, result, ExtraPlace(extra_dir, protected))
    forms.write(result)
    print_files(done)
    written += [(option.removeprefix("--"), path) for option, path in forms.by_option.items() if path is not None]
    return written + [("file", path) for path in done.written]


def _refuse_files(places: dict[str, Path | None]) -> None:
    """Refuse what an evaluation does not give.

    Raises:
        typer.BadParameter: naming the option.
    """
    for option, place in places.items():
        if place is not None:
            what = "has no model" if option == "--output" else "is available as JSON only"
            raise typer.BadParameter(f"An evaluation {what}: use --report.", param_hint=option)


def _write_weights(model: Path, safetensors: Path) -> None:
    from worker.quantizer.graph.serialized import save_weights  # the engine, which clients do without

    save_weights(model, safetensors)
    typer.echo(f"weights   {safetensors}")


def _check_places(output: Path | None, report: Path | None, extra_dir: Path | None, forms: ReportFiles) -> None:
    """Refuse places that cannot be written to before anything is asked for."""
    for path in (output, report, *forms.paths):
        options.output_path(path)
    options.output_folder(extra_dir)
    attestation = {} if output is None else {"the attestation of --output": attestation_path(output)}
    options.distinct_paths({"--output": output, "--report": report, **forms.by_option, **attestation}, {})


def attestation_path(file: Path) -> Path:
    """Where the attestation of ``file`` lies."""
    return file.with_name(file.name + SUFFIX)


def download_attestation(client: Client, job_id: str, path: Path) -> bool:
    """Write what the service has signed of a job to ``path``; where it signs nothing, say so and give False.

    Raises:
        ApiError: the service refused for another reason.
    """
    from service.client import ApiError

    try:
        data = client.attestation(job_id)
    except ApiError as error:
        if error.code not in _UNSIGNED and error.status != _NOT_FOUND:  # older services know no attestations
            raise
        typer.echo(f"No attestation: {error.detail}", err=True)
        return False
    write_whole(path, data + b"\n")
    typer.echo(f"attested  {path}")
    return True
