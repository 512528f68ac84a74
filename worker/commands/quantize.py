"""``quantmill quantize`` and ``evaluate``: in this process, or on a service with ``--server``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from service.contracts.data_checks import check_data_given
from service.contracts.presets import DEFAULT_PRESET, RECOMMENDED
from worker.commands import options
from worker.commands.command import Service, command
from worker.commands.job_results import FailOnGate, check_gate, judged
from worker.commands.report_files import ReportFiles, write_json

PRESET_HELP = f"Preset: {', '.join(RECOMMENDED)}, ... `quantmill presets --all` lists all. Default: {DEFAULT_PRESET}."


@dataclass(frozen=True, kw_only=True)
class Files:
    """What is quantized how, and where the results go."""

    model: options.ModelPath
    output: Annotated[Path, typer.Option(metavar="Q.onnx", help="Write the quantized model to this file.")]
    calibration: options.CalibrationPath = None
    evaluation: options.OptionalData = None
    preset: Annotated[str | None, typer.Option(help=PRESET_HELP)] = None
    config: options.ConfigFile = None
    report: Annotated[Path | None, typer.Option(metavar="R.json", help="Write the report as JSON to this file.")] = None


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What data, weights and ranges become inputs of the model, and of its quantization."""

    preprocessing: options.Preprocessing = None
    evaluation_preprocessing: options.EvaluationPreprocessing = None
    state: options.StateFile = None
    ranges_from: options.RangesFrom = None


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where a command works: in this process, or on a service."""

    threads: options.Threads = None
    priority: options.Priority = None
    device: options.Device = None
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this service instead of in this process.")
    ] = None
    key: options.Key = field(default=None, repr=False)

    @property
    def service(self) -> Service | None:
        """The service; None: this process."""
        return None if self.server is None else Service(server=self.server, key=self.key)


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Where further results go, and what other runs may take up."""

    extra_dir: options.ExtraDir = None
    checkpoint_dir: options.CheckpointDir = None
    cache_dir: options.CacheDir = None


def register_quantize(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    command(app)(quantize)
    command(app)(evaluate)


def quantize(
    files: Files,
    forms: ReportFiles,
    sources: Sources,
    place: RunPlace,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    *,
    folders: Folders,
    fail_on_gate: FailOnGate = False,
) -> None:
    """Quantize a model, here or on a service (--server)."""
    from worker.commands.console import ProgressView
    from worker.commands.files import ExtraPlace, print_files
    from worker.commands.naming import naming_files
    from worker.commands.recipes import Quantization, load_preprocessing, load_recipe, packed, source
    from worker.commands.report_view import print_report
    from worker.commands.summary import print_summary

    _check_options(files, place, folders)
    _check_paths(files, forms, sources, folders, local=place.server is None)
    used = (
        files.model,
        files.calibration,
        files.evaluation,
        files.config,
        files.output,
        files.report,
        sources.state,
        *forms.paths,
    )
    loaded = load_recipe(files.preset, files.config)
    with loaded.pointing_into_file():
        check_data_given(
            loaded.config, calibration=files.calibration is not None, evaluation=files.evaluation is not None
        )
    spec = load_preprocessing(sources.preprocessing)
    evaluation_spec = load_preprocessing(sources.evaluation_preprocessing or sources.preprocessing)
    with ExitStack() as stack:
        stack.enter_context(loaded.pointing_into_file())
        stack.enter_context(naming_files(files.model, calibration=files.calibration, evaluation=files.evaluation))
        calibration = evaluation = None
        if files.calibration is not None:
            calibration = source(stack.enter_context(packed(files.calibration, "calibration")), spec)
        if files.evaluation is not None:
            evaluation = source(stack.enter_context(packed(files.evaluation, "evaluation")), evaluation_spec)
        view = stack.enter_context(ProgressView(quiet=quiet, verbose=verbose))
        task = Quantization(
            model=files.model,
            config=loaded.config,
            calibration=calibration,
            evaluation=evaluation,
            output=files.output,
            extra=ExtraPlace(folders.extra_dir, tuple(path for path in used if path is not None)),
            state=sources.state,
            ranges_from=sources.ranges_from,
        )
        if place.service is None:
            from worker.commands import local

            settings = options.load_settings()
            done = local.quantize(
                task,
                threads=place.threads or settings.threads,
                view=view,
                checkpoint_dir=folders.checkpoint_dir,
                cache_dir=folders.cache_dir,
                cache_bytes=settings.cache_bytes,
            )
        else:
            from worker.commands import remote

            done = remote.quantize(
                task, place.service, view=view, priority=place.priority or 0, device=place.device or "auto"
            )
    if files.report is not None:
        write_json(files.report, done.report.to_json_dict())
    if not quiet:
        (print_report if verbose else print_summary)(done.report, report_path=files.report)
    typer.echo(f"model     {files.output}")
    if files.report is not None:
        typer.echo(f"report    {files.report}")
    forms.write(done.report)
    print_files(done)
    check_gate(judged(done.report), fail_on_gate, quiet=quiet)


def _check_options(files: Files, place: RunPlace, folders: Folders) -> None:
    """Refuse options that exclude each other, and those that are not for the place of the run.

    Raises:
        typer.BadParameter: naming the option.
    """
    options.one_recipe(files.preset, files.config)
    own = {
        "--threads": place.threads,
        "--checkpoint-dir": folders.checkpoint_dir,
        "--cache-dir": folders.cache_dir,
    }
    options.refuse_on_service(place.server, own)
    of_services = {"--priority": place.priority, "--device": place.device}
    for option in (name for name, value in of_services.items() if value is not None):
        if place.server is None:
            raise typer.BadParameter(f"{option} requires --server.")


def _check_paths(files: Files, forms: ReportFiles, sources: Sources, folders: Folders, *, local: bool) -> None:
    """Refuse places that cannot be written to, and files that are named twice.

    Raises:
        typer.BadParameter: naming the path or both options.
    """
    for path in (files.output, files.report, *forms.paths):
        options.output_path(path)
    for folder in (folders.extra_dir, folders.checkpoint_dir, folders.cache_dir):
        options.output_folder(folder)
    options.distinct_paths(
        {"--output": files.output, "--report": files.report, **forms.by_option},
        {
            "MODEL": files.model,
            "--calibration": files.calibration,
            "--evaluation": files.evaluation,
            "--config": files.config,
            "--state": sources.state,
            "--ranges-from": Path(sources.ranges_from) if sources.ranges_from is not None and local else None,
        },
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationFiles:
    """What is measured on what."""

    model: options.ModelPath
    evaluation: options.DataPath
    reference: options.Baseline = None
    config: options.MetricsFile = None


def evaluate(
    files: EvaluationFiles,
    preprocessing: options.Preprocessing = None,
    threads: options.Threads = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this service instead of in this process.")
    ] = None,
    key: options.Key = None,
    fail_on_gate: FailOnGate = False,
) -> None:
    """Measure a model on data, with a baseline if given; print JSON."""
    from worker.commands import local, remote
    from worker.commands.console import ProgressView
    from worker.commands.naming import naming_files
    from worker.commands.recipes import Measurement, load_preprocessing
    from worker.commands.report_view import print_evaluation

    options.refuse_on_service(server, {"--threads": threads})
    spec = load_preprocessing(preprocessing)
    task = Measurement(files.model, files.evaluation, spec, files.reference, files.config)
    named = naming_files(files.model, reference=files.reference, evaluation=files.evaluation)
    with ProgressView() as view, named:
        if server is None:
            result = local.evaluate(task, threads=threads or options.load_settings().threads, view=view)
        else:
            result = remote.evaluate(task, Service(server=server, key=key), view=view)
    print_evaluation(result)
    typer.echo(json.dumps(result, indent=2))
    check_gate(result["verdict"], fail_on_gate)
