"""``quantmill jobs``: look at the jobs of a service, follow one to its end, cancel one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worker.commands import options
from worker.commands.options import ExtraDir, Key, Server
from worker.commands.report_files import write_json

app = typer.Typer(name="jobs", help="Jobs of a service: list, show, follow, cancel.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, such as job_01jd3v8g5z7k2m4n6p8q0r1s2t.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, as the service gives it.")]


@app.command("list")
def list_jobs(
    server: Server,
    key: Key = None,
    state: Annotated[
        str | None, typer.Option(help="queued, running, canceling, succeeded, failed or canceled.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """The newest jobs, one line each."""
    from worker.commands.job_views import print_jobs
    from worker.commands.server import connected

    with connected(server, key) as client:
        page = client.jobs(state=state, limit=limit)
    if json:
        typer.echo(page.model_dump_json(indent=2))
        return
    print_jobs(page.items)
    if page.has_more:
        typer.echo(f"There are more: --limit shows up to 200 (shown: {len(page.items)}).", err=True)


@app.command()
def show(job: JobId, server: Server, key: Key = None, json: Json = False) -> None:
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
    server: Server,
    key: Key = None,
    output: Annotated[
        Path | None, typer.Option(metavar="Q.onnx", help="Where the quantized model goes. Default: not downloaded.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="R.json", help="Where the report goes.")] = None,
    extra_dir: ExtraDir = None,
) -> None:
    """Follow a job to its end; print its report. Exit code 1 if it failed or was canceled."""
    from worker.commands import remote
    from worker.commands.console import ProgressView, print_report
    from worker.commands.files import ExtraPlace, download_files, print_files
    from worker.commands.server import connected

    options.output_path(output)
    options.output_path(report)
    options.output_folder(extra_dir)
    options.distinct_paths({"--output": output, "--report": report}, {})
    with connected(server, key) as client, ProgressView() as view:
        result = remote.follow(client, job, server=server, view=view)
        if output is not None:
            remote.download_model(client, job, output)
        protected = tuple(path for path in (output, report) if path is not None)
        done = download_files(client, job, result, ExtraPlace(extra_dir, protected))
    if report is not None:
        write_json(report, result.to_json_dict())
    print_report(result, report_path=report)
    print_files(done)


@app.command()
def cancel(job: JobId, server: Server, key: Key = None) -> None:
    """Cancel a queued job, ask a running one to stop; one that has ended stays as it is."""
    from service.jobs.schemas import TERMINAL
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.cancel(job)
    note = " (it had ended before)" if found.state in TERMINAL - {"canceled"} else ""
    typer.echo(f"{found.id} is {found.state}{note}")
