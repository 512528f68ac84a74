"""The command line: everything that Quantmill can do, by one word each.

Modules are imported where they are needed: the engine and the web framework each take a moment to load, and the front
app is installed without the engine.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from service import cli as api_server
from service.contracts.data_checks import check_data_given
from service.contracts.exits import EXITS_BY_CODE, GATE_EXITS, ExitCode
from service.contracts.presets import DEFAULT_PRESET, PRESETS
from service.contracts.version import VERSION
from worker.commands import advice as advising
from worker.commands import (
    audit,
    batches,
    datasets,
    hand_overs,
    job_evaluations,
    job_records,
    job_results,
    jobs,
    keys,
    mlflow_runs,
    nouns,
    options,
    quarantine,
    report_files,
    schedules,
    tenants,
    webhooks,
)
from worker.commands import backup as backing_up
from worker.commands import compare as comparing
from worker.commands import inspect as inspecting
from worker.commands import queues as queue_figures
from worker.commands import reproduce as reproducing
from worker.commands import upkeep as upkeeping
from worker.commands import verify as verifying
from worker.commands.options import (
    CacheDir,
    CalibrationPath,
    CheckpointDir,
    DataDir,
    DataPath,
    EvaluationPreprocessing,
    ExtraDir,
    Key,
    ModelPath,
    OptionalData,
    OptionalPath,
    Preprocessing,
    Threads,
)
from worker.threads import wait_quietly

PRESET_HELP = f"Name of a preset: {', '.join(PRESETS)}. Default: {DEFAULT_PRESET}."

app = typer.Typer(
    name="quantmill",
    help="Quantize float ONNX models and prove what that cost.",
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
    """Quantize float ONNX models and prove what that cost."""
    options.warn_of_unknown_variables()


@app.command()
def up(
    host: Annotated[
        str | None, typer.Option(help=f"Address to listen on. Default: {options.default_of('host')}.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"Port; 0 takes any free one. Default: {options.default_of('port')}."),
    ] = None,
    data_dir: DataDir = None,
    is_open: api_server.Open = False,
) -> None:
    """Run the whole service on this host: API, workers and reconciler, on SQLite and local files."""
    from service.keys.start import start_refusal
    from service.secrecy import hide_process
    from worker.embedded import EmbeddedService, StopFlag, banner

    options.configure_logging()
    settings = options.load_settings(host=host, port=port, data_dir=data_dir, open=is_open or None)
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
        str, typer.Option(help="Queues to take jobs from, separated by commas: cpu, gpu, inspect (validation).")
    ] = "cpu,inspect",
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at a time. Default: QUANTMILL_WORKER_SLOTS, or 1; with --devices one for each."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="0,1", help="GPUs, as the driver numbers them: dealt out to the slots. Default: all see all."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run jobs: one Celery worker process that supervises runner processes."""
    from worker.process import run_worker_process

    options.configure_logging()
    names = tuple(name.strip() for name in queues.split(","))
    gpus = () if devices is None else tuple(name.strip() for name in devices.split(",") if name.strip())
    settings = options.load_settings(data_dir=data_dir, worker_slots=slots or len(gpus) or None)
    raise typer.Exit(run_worker_process(settings, names, gpus))


@app.command()
def reconcile(
    once: Annotated[bool, typer.Option("--once", help="One round of every loop, then exit.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Release jobs to workers, expire leases and uploads, collect garbage."""
    from worker.process import run_reconciler_process

    options.configure_logging()
    done = run_reconciler_process(options.load_settings(data_dir=data_dir), once=once)
    if done is not None:
        typer.echo(json.dumps(done))


@app.command()
def quantize(
    model: ModelPath,
    output: Annotated[Path, typer.Option(metavar="Q.onnx", help="Where the quantized model goes.")],
    calibration: CalibrationPath = None,
    evaluation: OptionalData = None,
    preset: Annotated[str | None, typer.Option(help=PRESET_HELP)] = None,
    config: options.ConfigFile = None,
    report: Annotated[Path | None, typer.Option(metavar="R.json", help="Where the report goes.")] = None,
    html: report_files.Html = None,
    markdown: report_files.Markdown = None,
    junit: report_files.Junit = None,
    layers_csv: report_files.LayersCsv = None,
    preprocessing: Preprocessing = None,
    evaluation_preprocessing: EvaluationPreprocessing = None,
    state: options.StateFile = None,
    ranges_from: options.RangesFrom = None,
    threads: Threads = None,
    priority: options.Priority = None,
    device: options.Device = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Let a service do it.")] = None,
    key: Key = None,
    quiet: options.Quiet = False,
    extra_dir: ExtraDir = None,
    checkpoint_dir: CheckpointDir = None,
    cache_dir: CacheDir = None,
    fail_on_gate: Annotated[
        bool, typer.Option("--fail-on-gate", help="Exit with 3 if the verdict is fail, with 4 if it is undecided.")
    ] = False,
) -> None:
    """Quantize a model: in this process, or on a service with --server."""
    from worker.commands import local
    from worker.commands.console import ProgressView, print_report
    from worker.commands.files import ExtraPlace, print_files

    if preset is not None and config is not None:
        raise typer.BadParameter("--preset and --config exclude each other; a config may name its preset.")
    own = {"--threads": threads, "--checkpoint-dir": checkpoint_dir, "--cache-dir": cache_dir}
    for option in (name for name, value in own.items() if server is not None and value is not None):
        raise typer.BadParameter(f"{option} is for runs in this process; a service has its own setting.")
    for option in (name for name, value in (("--priority", priority), ("--device", device)) if value is not None):
        if server is None:
            raise typer.BadParameter(f"{option} is for a service: give --server.")
    forms = report_files.ReportFiles(html, markdown, junit, layers_csv)
    for path in (output, report, *forms.paths):
        options.output_path(path)
    for folder in (extra_dir, checkpoint_dir, cache_dir):
        options.output_folder(folder)
    options.distinct_paths(
        {"--output": output, "--report": report, **forms.by_option},
        {
            "MODEL": model,
            "--calibration": calibration,
            "--evaluation": evaluation,
            "--config": config,
            "--state": state,
            "--ranges-from": Path(ranges_from) if ranges_from is not None and server is None else None,
        },
    )
    used = (model, calibration, evaluation, config, output, report, state, *forms.paths)
    extra = ExtraPlace(extra_dir, tuple(path for path in used if path is not None))
    loaded = local.load_recipe(preset, config)
    recipe = loaded.config
    with loaded.pointing_into_file():
        check_data_given(recipe, calibration=calibration is not None, evaluation=evaluation is not None)
    spec = local.load_preprocessing(preprocessing)
    evaluation_spec = local.load_preprocessing(evaluation_preprocessing or preprocessing)
    with ExitStack() as stack:
        stack.enter_context(loaded.pointing_into_file())
        calibration_data = evaluation_data = None
        if calibration is not None:
            calibration_data = local.source(stack.enter_context(local.packed(calibration, "calibration")), spec)
        if evaluation is not None:
            evaluation_file = stack.enter_context(local.packed(evaluation, "evaluation"))
            evaluation_data = local.source(evaluation_file, evaluation_spec)
        view = stack.enter_context(ProgressView(quiet=quiet))
        if server is None:
            settings = options.load_settings()
            done = local.quantize(
                model if state is None else stack.enter_context(local.filled(model, state)),
                config=recipe if ranges_from is None else local.with_ranges_of(recipe, Path(ranges_from)),
                calibration=calibration_data,
                evaluation=evaluation_data,
                output=output,
                threads=threads or settings.threads,
                view=view,
                extra=extra,
                keep=local.Keep(checkpoint_dir, cache_dir, settings.cache_bytes),
            )
        else:
            from worker.commands import remote

            done = remote.quantize(
                model,
                config=recipe,
                calibration=calibration_data,
                evaluation=evaluation_data,
                output=output,
                server=server,
                key=key,
                view=view,
                extra=extra,
                state=state,
                ranges_from=ranges_from,
                priority=priority or 0,
                device=device or "auto",
            )
    result = done.report
    if report is not None:
        report_files.write_json(report, result.to_json_dict())
    if not quiet:
        print_report(result, report_path=report)
    typer.echo(f"model     {output}")
    if report is not None:
        typer.echo(f"report    {report}")
    forms.write(result)
    print_files(done)
    if fail_on_gate and result.verdict in GATE_EXITS:
        raise typer.Exit(GATE_EXITS[result.verdict])


@app.command()
def evaluate(
    model: ModelPath,
    evaluation: DataPath,
    reference: OptionalPath = None,
    config: options.MetricsFile = None,
    preprocessing: Preprocessing = None,
    threads: Threads = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Let a service do it.")] = None,
    key: Key = None,
    fail_on_gate: Annotated[
        bool, typer.Option("--fail-on-gate", help="Exit with 3 if the verdict is fail, with 4 if it is undecided.")
    ] = False,
) -> None:
    """Measure a model on data, beside a reference model if there is one. JSON on standard output."""
    from worker.commands import local, remote
    from worker.commands.console import ProgressView
    from worker.commands.evaluation_view import print_evaluation

    if server is not None and threads is not None:
        raise typer.BadParameter("--threads is for runs in this process; a service has its own setting.")
    spec = local.load_preprocessing(preprocessing)
    with ProgressView() as view:
        if server is None:
            result = local.evaluate(
                model,
                evaluation=evaluation,
                preprocessing=spec,
                reference=reference,
                config=config,
                threads=threads or options.load_settings().threads,
                view=view,
            )
        else:
            result = remote.evaluate(
                model,
                evaluation=evaluation,
                preprocessing=spec,
                reference=reference,
                config=config,
                server=server,
                key=key,
                view=view,
            )
    print_evaluation(result)
    typer.echo(json.dumps(result, indent=2))
    if fail_on_gate and result["verdict"] in GATE_EXITS:
        raise typer.Exit(GATE_EXITS[result["verdict"]])


@app.command()
def demo(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where model and report go.")] = Path("demo-output"),
    data_dir: DataDir = None,
) -> None:
    """Train a small CNN, quantize it through a service of its own, print the report."""
    from worker.commands.demo import run_demo

    run_demo(output, data_dir)


@app.command()
def doctor(
    data_dir: DataDir = None,
    engine: Annotated[bool, typer.Option(help="Look at the engine's libraries, too.")] = True,
    as_json: options.PlainJson = False,
) -> None:
    """Check this installation and what it is connected to; exit code 1 if anything is wrong."""
    from worker.commands.doctor import examine, print_findings

    findings = examine(options.load_settings(data_dir=data_dir), engine=engine)
    print_findings(findings, as_json=as_json)
    if any(not finding.ok for finding in findings):
        raise typer.Exit(ExitCode.ERROR)


@app.command()
def version(as_json: options.PlainJson = False) -> None:
    """Print the version."""
    typer.echo(json.dumps({"version": VERSION}) if as_json else VERSION)


api_server.register(app)
inspecting.register(app)
report_files.register(app)
advising.register(app)
queue_figures.register(app)
upkeeping.register(app)
backing_up.register(app)
comparing.register(app)
verifying.register(app)
reproducing.register(app)
app.add_typer(audit.app)
app.add_typer(batches.app)
app.add_typer(datasets.app)
for command in (*job_results.COMMANDS, *job_records.COMMANDS):
    jobs.app.command()(command)
jobs.app.command()(job_evaluations.evaluate)
jobs.app.command()(mlflow_runs.to_mlflow)
jobs.app.command("hand-over")(hand_overs.hand_over)
app.add_typer(jobs.app)
app.add_typer(keys.app)
for noun in nouns.apps:
    app.add_typer(noun)
app.add_typer(quarantine.app)
app.add_typer(tenants.app)
app.add_typer(schedules.app)
app.add_typer(webhooks.app)


def main() -> None:
    """Entry point: everything is told in a few lines, never as a traceback; faults of ours with a file to report."""
    wait_quietly()
    try:
        with options.settings_errors():
            app()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - whatever was not foreseen is a fault of ours
        from worker.commands.console import print_problem
        from worker.commands.crash import crash_error

        typed = options.typed_error(error)
        print_problem((typed or crash_error(error)).problem())
        sys.exit(ExitCode.INTERNAL if typed is None else EXITS_BY_CODE.get(typed.code, ExitCode.ERROR))


if __name__ == "__main__":
    main()
