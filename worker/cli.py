"""The command line: all commands of Quantmill.

Modules are imported where they are needed: the engine and the web framework each take a moment to load, and the API
server is installed without the engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from service import cli as api_server
from service.contracts.base import VERSION
from service.contracts.command_errors import EXITS_BY_CODE, ExitCode
from worker.commands import administration, batches, jobs, options, report_files, resources, schedules, webhooks
from worker.commands import compare as comparing
from worker.commands import inspect as inspecting
from worker.commands import upkeep as upkeeping
from worker.commands import verify as verifying
from worker.commands.options import DataDir
from worker.commands.panels import PanelGroup
from worker.commands.quantize import register_quantize
from worker.memory import wait_quietly

app = typer.Typer(
    name="quantmill",
    cls=PanelGroup,
    help="Quantize ONNX models and measure the accuracy drop.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def every_command(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Quantize ONNX models and measure the accuracy drop."""
    options.warn_of_unknown_variables()


@app.command()
def up(
    host: Annotated[
        str | None, typer.Option(help=f"Address to listen on. Default: {options.default_of('host')}.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"Port; 0 chooses a free one. Default: {options.default_of('port')}."),
    ] = None,
    data_dir: DataDir = None,
    is_open: api_server.Open = False,
) -> None:
    """Run the whole service on this host (SQLite, local files)."""
    from service.keys.start import start_refusal
    from service.process import hide_process
    from worker.embedded import EmbeddedService, StopFlag, banner

    settings = options.load_settings(host=host, port=port, data_dir=data_dir, open=is_open or None)
    options.configure_logging(form=settings.log_format)
    refusal = start_refusal(settings)
    if refusal is not None:
        typer.echo(refusal, err=True)
        raise typer.Exit(ExitCode.USAGE)
    stop = StopFlag()
    stop.install()
    hide_process()
    service = EmbeddedService(settings)
    try:
        service.run(stop, lambda url: typer.echo(banner(settings, url)))
    finally:
        service.close()


@app.command()
def worker(
    queues: Annotated[
        str, typer.Option(help="Queues, separated by commas: cpu, gpu, inspect (validation).")
    ] = "cpu,inspect",
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at a time. Default: QUANTMILL_WORKER_SLOTS, one per device, or 1."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="0,1", help="GPUs to distribute to the slots, by number or UUID (MIG too). Default: all see all."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run a worker, which executes jobs."""
    from worker.process import run_worker_process

    names = tuple(name.strip() for name in queues.split(","))
    gpus = () if devices is None else tuple(name.strip() for name in devices.split(",") if name.strip())
    settings = options.load_settings(data_dir=data_dir, worker_slots=slots or len(gpus) or None)
    options.configure_logging(form=settings.log_format)
    raise typer.Exit(run_worker_process(settings, names, gpus))


@app.command()
def reconcile(
    once: Annotated[bool, typer.Option("--once", help="Run every loop once, then exit.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Run the reconciler: dispatch jobs, expire leases, delete expired data."""
    from worker.process import run_reconciler_process

    settings = options.load_settings(data_dir=data_dir)
    options.configure_logging(form=settings.log_format)
    done = run_reconciler_process(settings, once=once)
    if done is not None:
        typer.echo(json.dumps(done))


register_quantize(app)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Write model and report to this folder.")] = Path(
        "demo-output"
    ),
    data_dir: DataDir = None,
) -> None:
    """Train a small CNN, quantize it on a temporary service, print the report."""
    from worker.commands.demo import run_demo

    run_demo(output, data_dir)


@app.command()
def doctor(
    data_dir: DataDir = None,
    engine: Annotated[bool, typer.Option(help="Check the engine's libraries as well.")] = True,
    as_json: options.PlainJson = False,
) -> None:
    """Check this installation. Exit code 1 if anything is wrong."""
    from worker.commands.doctor import examine, print_findings

    findings = examine(options.load_settings(data_dir=data_dir), engine=engine)
    print_findings(findings, as_json=as_json)
    if any(not finding.ok for finding in findings):
        raise typer.Exit(ExitCode.ERROR)


@app.command(hidden=True)  # --version is the same
def version(as_json: options.PlainJson = False) -> None:
    """Print the version."""
    typer.echo(json.dumps({"version": VERSION}) if as_json else VERSION)


api_server.register(app)
inspecting.register(app)
report_files.register(app)
administration.register(app)
upkeeping.register(app)
comparing.register(app)
verifying.register(app)
for group in (
    administration.audit,
    batches.app,
    resources.packing,
    jobs.app,
    administration.app,
    *resources.apps,
    administration.quarantine,
    administration.tenants,
    schedules.app,
    webhooks.app,
):
    app.add_typer(group)


def main() -> None:
    """Entry point: errors are printed in a few lines, never as a traceback; our own faults name a file to report."""
    wait_quietly()
    try:
        with options.settings_errors():
            app()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - whatever was not foreseen is a fault of ours
        from worker.commands.console import crash_error, print_problem

        typed = options.typed_error(error)
        print_problem((typed or crash_error(error)).problem())
        sys.exit(ExitCode.INTERNAL if typed is None else EXITS_BY_CODE.get(typed.code, ExitCode.ERROR))


if __name__ == "__main__":
    main()
