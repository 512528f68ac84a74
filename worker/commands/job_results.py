"""``quantmill jobs follow|fetch``: a job watched to its end, and what it gave as files of this host."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.commands import options, report_files
from worker.commands.attestation_files import attestation_path, download_attestation
from worker.commands.job_waiting import FailOnGate, Timeout, check_gate, followed, print_result
from worker.commands.jobs import JobId
from worker.commands.json_output import print_json, print_line
from worker.commands.options import ExtraDir, Key, Quiet, Server
from worker.commands.report_files import ReportFiles, write_json

if TYPE_CHECKING:
    from service.client import Client
    from service.contracts.evaluation_report import EvaluationReport
    from service.contracts.report import Report

Output = Annotated[
    Path | None, typer.Option(metavar="Q.onnx", help="Where the quantized model goes. Default: not downloaded.")
]
ReportPath = Annotated[Path | None, typer.Option(metavar="R.json", help="Where the report goes.")]
Events = Annotated[
    bool, typer.Option("--json", help="On standard output one event a line as JSON, as they happen, and nothing else.")
]
_Found = tuple[str, Path]


def follow(
    job: JobId,
    server: Server = None,
    key: Key = None,
    output: Output = None,
    report: ReportPath = None,
    extra_dir: ExtraDir = None,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    json: Events = False,
    quiet: Quiet = False,
) -> None:
    """Follow a job to its end; print its report. Exit code 1 if it failed or was canceled."""
    from service.contracts.report import Report
    from worker.commands.files import ExtraPlace, download_files, print_files
    from worker.commands.server import connected

    _check_places(output, report, extra_dir, ReportFiles())
    with connected(server, key) as client:
        found = client.job(job)
        if found.kind == "evaluate":
            _refuse_files({"--output": output, "--extra-dir": extra_dir})
        tell = print_line if json else None
        result = followed(client, found, timeout_seconds=timeout, quiet=quiet or json, on_event=tell)
        done = None
        if isinstance(result, Report):
            if output is not None:
                client.download(job, output)
            protected = tuple(path for path in (output, report) if path is not None)
            done = download_files(client, job, result, ExtraPlace(extra_dir, protected))
    if report is not None:
        write_json(report, result.to_json_dict())
    if not (quiet or json):
        print_result(result, report_path=report)
        if done is not None:
            print_files(done)
    check_gate(result, fail_on_gate)


def fetch(
    job: JobId,
    server: Server = None,
    key: Key = None,
    output: Output = None,
    report: ReportPath = None,
    html: report_files.Html = None,
    markdown: report_files.Markdown = None,
    junit: report_files.Junit = None,
    layers_csv: report_files.LayersCsv = None,
    extra_dir: ExtraDir = None,
    safetensors: Annotated[
        Path | None,
        typer.Option(metavar="W.safetensors", help="Where the quantized model's weights go; needs --output."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="What was written, as JSON on standard output.")] = False,
) -> None:
    """Download what a succeeded job gave: model with attestation, report, further files. Each is whole or not there.

    An evaluation has made a report alone.
    """
    from worker.commands.server import connected

    forms = ReportFiles(html, markdown, junit, layers_csv)
    if safetensors is not None and output is None:
        raise typer.BadParameter("--safetensors takes the weights out of --output.")
    if all(place is None for place in (output, report, extra_dir, *forms.by_option.values())):
        raise typer.BadParameter("Say what to fetch: --output, --report, --html, --extra-dir ...")
    _check_places(output, report, extra_dir, forms)
    if safetensors is not None:
        options.output_path(safetensors)
        options.distinct_paths({"--output": output, "--report": report, "--safetensors": safetensors}, {})
    with ExitStack() as stack:
        client = stack.enter_context(connected(server, key))
        if json:
            stack.enter_context(redirect_stdout(sys.stderr))  # what tells people of each file
        if client.job(job).kind == "evaluate":
            _refuse_files({"--output": output, "--extra-dir": extra_dir, **forms.by_option})
            result: Report | EvaluationReport = client.evaluation_report(job)
            written: list[_Found] = []
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
) -> list[_Found]:
    """All that a quantization gave but its report as JSON, each with its kind."""
    from worker.commands.files import ExtraPlace, download_files, print_files

    written: list[_Found] = []
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
            what = "makes no model" if option == "--output" else "is told as JSON alone"
            raise typer.BadParameter(f"an evaluation {what}: --report takes what it found.", param_hint=option)


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


COMMANDS = (follow, fetch)
