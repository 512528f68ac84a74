"""``quantmill jobs``: submit jobs to a service, look at them, follow one to its end, fetch what it gave, cancel one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.contracts.exits import GATE_EXITS
from worker.commands import options, report_files
from worker.commands.attestation_files import attestation_path, download_attestation
from worker.commands.options import ExtraDir, Json, Key, Quiet, Server
from worker.commands.report_files import ReportFiles, write_json

if TYPE_CHECKING:
    from service.contracts.report import Report

app = typer.Typer(
    name="jobs",
    help="Jobs of a service: submit, list, show, follow, fetch, cancel, retry, clone, label, logs, rm.",
    no_args_is_help=True,
)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, such as job_01jd3v8g5z7k2m4n6p8q0r1s2t.")]
Output = Annotated[
    Path | None, typer.Option(metavar="Q.onnx", help="Where the quantized model goes. Default: not downloaded.")
]
ReportPath = Annotated[Path | None, typer.Option(metavar="R.json", help="Where the report goes.")]
FailOnGate = Annotated[
    bool, typer.Option("--fail-on-gate", help="Exit with 3 if the verdict is fail, with 4 if it is undecided.")
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="Wait no longer: exit with 5, while the job goes on in the service."),
]


@app.command()
def submit(
    model: Annotated[str, typer.Option(metavar="MODEL", help="Id of a model; quantmill models push prints it.")],
    calibration: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Id of a dataset; quantmill datasets push prints it.")
    ] = None,
    evaluation: Annotated[str | None, typer.Option(metavar="DATASET", help="Id of another one.")] = None,
    preset: Annotated[str | None, typer.Option(help="Name of a preset; quantmill presets lists them.")] = None,
    config: options.ConfigFile = None,
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="To find the job by; may be given again.")
    ] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="The highest number starts first.")] = 0,
    device: options.Device = None,
    ranges_from: Annotated[
        str | None, typer.Option(metavar="JOB", help="Take over the calibrated ranges of a job on the same graph.")
    ] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="Take a job that would give the same, if there is.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="WORD", help="The same command with the same word makes no second job.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job to its end, and print its report.")] = False,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit a job on a model and data of the service; prints its id."""
    from worker.commands import local, remote
    from worker.commands.console import ProgressView, print_report
    from worker.commands.server import connected

    if preset is not None and config is not None:
        raise typer.BadParameter("--preset and --config exclude each other; a config may name its preset.")
    for option in (name for name, given in (("--timeout", timeout), ("--fail-on-gate", fail_on_gate)) if given):
        if not wait:
            raise typer.BadParameter(f"{option} is for a job that is waited for: give --wait.")
    labels = options.labels(label or ())
    loaded = local.load_recipe(preset, config)
    with connected(server, key) as client, ProgressView(quiet=quiet) as view:
        with loaded.pointing_into_file():
            job = client.submit(
                model=model,
                calibration=calibration,
                evaluation=evaluation,
                config=loaded.config,
                name=name,
                labels=labels,
                priority=priority,
                device=device or "auto",
                ranges_from=ranges_from,
                reuse=reuse,
                idempotency_key=idempotency_key,
            )
        if not json:
            typer.echo(job.id)
        result = remote.follow(client, job.id, view=view, timeout_seconds=timeout) if wait else None
        if json:
            typer.echo((job if result is None else client.job(job)).model_dump_json(indent=2))
    if result is not None:
        if not (json or quiet):
            print_report(result)
        _check_gate(result, fail_on_gate)


@app.command("list")
def list_jobs(
    server: Server = None,
    key: Key = None,
    state: Annotated[
        str | None, typer.Option(help="queued, running, canceling, succeeded, failed or canceled.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="A part of the name, in any case.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Those with this; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """The newest jobs, one line each."""
    from worker.commands.job_views import print_jobs
    from worker.commands.server import connected

    with connected(server, key) as client:
        page = client.jobs_page(state=state, search=search, labels=options.labels(label or ()), limit=limit)
    if json:
        typer.echo(page.model_dump_json(indent=2))
        return
    print_jobs(page.items)
    if page.has_more:
        typer.echo(f"There are more: --limit shows up to 200 (shown: {len(page.items)}).", err=True)


@app.command()
def show(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """One job: where it stands, when it did what, and why it failed if it did."""
    from worker.commands.job_views import print_job
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.job(job)
    if json:
        typer.echo(found.model_dump_json(indent=2))
        return
    print_job(found)


@app.command()
def follow(
    job: JobId,
    server: Server = None,
    key: Key = None,
    output: Output = None,
    report: ReportPath = None,
    extra_dir: ExtraDir = None,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    quiet: Quiet = False,
) -> None:
    """Follow a job to its end; print its report. Exit code 1 if it failed or was canceled."""
    from worker.commands import remote
    from worker.commands.console import ProgressView, print_report
    from worker.commands.files import ExtraPlace, download_files, print_files
    from worker.commands.server import connected

    _check_places(output, report, extra_dir, ReportFiles())
    with connected(server, key) as client, ProgressView(quiet=quiet) as view:
        result = remote.follow(client, job, view=view, timeout_seconds=timeout)
        if output is not None:
            client.download(job, output)
        protected = tuple(path for path in (output, report) if path is not None)
        done = download_files(client, job, result, ExtraPlace(extra_dir, protected))
    if report is not None:
        write_json(report, result.to_json_dict())
    if not quiet:
        print_report(result, report_path=report)
        print_files(done)
    _check_gate(result, fail_on_gate)


@app.command()
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
) -> None:
    """Download what a succeeded job gave: model with attestation, report, further files. Each is whole or not there."""
    from worker.commands.files import ExtraPlace, download_files, print_files
    from worker.commands.server import connected

    forms = ReportFiles(html, markdown, junit, layers_csv)
    attestation = None if output is None else attestation_path(output)
    wanted = tuple(path for path in (output, attestation, report, *forms.paths) if path is not None)
    if not wanted and extra_dir is None:
        raise typer.BadParameter("Say what to fetch: --output, --report, --html, --extra-dir ...")
    _check_places(output, report, extra_dir, forms)
    with connected(server, key) as client:
        result = client.report(job)
        if output is not None:
            client.download(job, output)
            typer.echo(f"model     {output}")
            download_attestation(client, job, attestation_path(output))
        done = download_files(client, job, result, ExtraPlace(extra_dir, wanted))
    if report is not None:
        write_json(report, result.to_json_dict())
        typer.echo(f"report    {report}")
    forms.write(result)
    print_files(done)


@app.command()
def cancel(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Cancel a queued job, ask a running one to stop; one that has ended stays as it is."""
    from service.jobs.schemas import TERMINAL
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.cancel(job)
    if json:
        typer.echo(found.model_dump_json(indent=2))
        return
    note = " (it had ended before)" if found.state in TERMINAL - {"canceled"} else ""
    typer.echo(f"{found.id} is {found.state}{note}")


def _check_places(output: Path | None, report: Path | None, extra_dir: Path | None, forms: ReportFiles) -> None:
    """Refuse places that cannot be written to before anything is asked for."""
    for path in (output, report, *forms.paths):
        options.output_path(path)
    options.output_folder(extra_dir)
    attestation = {} if output is None else {"the attestation of --output": attestation_path(output)}
    options.distinct_paths({"--output": output, "--report": report, **forms.by_option, **attestation}, {})


def _check_gate(result: Report, fail_on_gate: bool) -> None:
    """End with the code of the verdict, if that is asked for."""
    if fail_on_gate and result.verdict in GATE_EXITS:
        raise typer.Exit(GATE_EXITS[result.verdict])
