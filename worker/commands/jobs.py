"""``quantmill jobs``: submit jobs to a service, look at them, cancel, repeat and label them, send their results on."""

from __future__ import annotations

import json as js
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.commands import options, views
from worker.commands.command import Done, Listed, ResultPrinting, Service, command, deleted, job_id, remote
from worker.commands.command import show as show_answer
from worker.commands.job_results import WaitOptions, fetch, finish, follow
from worker.commands.options import JobId
from worker.commands.printing import print_json, print_line
from worker.commands.webhooks import Targets, given_targets, register_hand_over

if TYPE_CHECKING:
    from service.client import Client
    from service.client.options import QuantizationOptions as ClientOptions
    from service.client.options import SubmitOptions
    from service.jobs.schemas import JobOut

app = typer.Typer(
    name="jobs",
    help="Submit and manage jobs.",
    no_args_is_help=True,
)


_USERS_KINDS = options.one_of("service.jobs.schemas", "UsersKind")
_SHOWN_STATES = options.one_of("service.jobs.schemas", "ShownState")
_VERDICTS = options.one_of("service.contracts.report", "Verdict")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a quantization is made of."""

    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Id of a model (quantmill models push prints it), or NAME@3, NAME@latest, NAME@prod.",
        ),
    ]
    calibration: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="Id of a dataset (quantmill datasets push prints it), or NAME@latest."),
    ] = None
    evaluation: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Id of a dataset to measure accuracy on.")
    ] = None
    preset: Annotated[str | None, typer.Option(help="Name of a preset; quantmill presets lists them.")] = None
    config: options.ConfigFile = None


@dataclass(frozen=True, kw_only=True)
class QuantizationFlags(options.JobOptions):
    """What a quantization on a service takes beside its inputs."""

    device: options.JobDevice = None
    ranges_from: Annotated[
        str | None, typer.Option(metavar="JOB", help="Reuse the calibrated ranges of a job on the same graph.")
    ] = None
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Use an existing job with the same result, if there is one.")
    ] = False
    targets: Targets = None
    idempotency_key: options.JobIdempotencyKey = None

    def request(self) -> ClientOptions:
        """The same as the client takes it."""
        return {
            **super().request(),
            "device": self.device or "auto",
            "ranges_from": self.ranges_from,
            "reuse": self.reuse,
            "hand_over": given_targets(self.targets),
            "idempotency_key": self.idempotency_key,
        }


@command(app)
def submit(
    inputs: Inputs,
    job: QuantizationFlags,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the request and estimate the job without submitting it.")
    ] = False,
    *,
    waiting: WaitOptions,
    service: Service,
    printing: ResultPrinting,
) -> None:
    """Submit a quantization job; print its id."""
    from worker.commands.recipes import load_recipe

    options.one_recipe(inputs.preset, inputs.config)
    if dry_run and waiting.wait:
        raise typer.BadParameter("--dry-run and --wait exclude each other.")
    waiting.check()
    if dry_run and job.targets is not None:
        raise typer.BadParameter("--dry-run and --targets exclude each other.", param_hint="--targets")
    request, loaded = job.request(), load_recipe(inputs.preset, inputs.config)
    with service.connected() as client:
        if job.ranges_from is not None:
            request["ranges_from"] = job_id(client, job.ranges_from)
        with loaded.pointing_into_file():
            if dry_run:
                _validate(client, inputs, job, loaded.config, as_json=printing.json)
                return
            made = client.submit(
                model=inputs.model,
                calibration=inputs.calibration,
                evaluation=inputs.evaluation,
                config=loaded.config,
                **request,
            )
        finish(client, made, waiting, printing)


def _validate(client: Client, inputs: Inputs, job: QuantizationFlags, config: Any, *, as_json: bool) -> None:
    found = client.validate(
        config,
        model=inputs.model,
        calibration=inputs.calibration,
        evaluation=inputs.evaluation,
        device=job.device or "auto",
        priority=job.priority,
    )
    show_answer(found, json=as_json, text=views.print_validated)


@dataclass(frozen=True, kw_only=True)
class ListFilters:
    """Which jobs are listed."""

    kind: Annotated[
        str | None,
        typer.Option(callback=_USERS_KINDS, help="quantize or evaluate. Default: both."),
    ] = None
    state: Annotated[
        str | None,
        typer.Option(
            callback=_SHOWN_STATES,
            help="queued, running, canceling, succeeded, failed or canceled.",
        ),
    ] = None
    verdict: Annotated[
        str | None,
        typer.Option(
            callback=_VERDICTS,
            help="pass, fail, undecided, or none (no gate).",
        ),
    ] = None
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Jobs of this model: its id or NAME@3.")] = None
    preset: Annotated[str | None, typer.Option(help="Jobs with this preset.")] = None
    name: Annotated[str | None, typer.Option(help="Jobs with exactly this name.")] = None
    search: Annotated[str | None, typer.Option(help="Jobs with this text in the name, ignoring case.")] = None
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", callback=options.checked_labels, help="Jobs with this label; repeatable."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            callback=options.checked_moment,
            help="Jobs created since 2026-01-31, 2026-01-31T12:00Z, or 90m, 12h, 7d ago.",
        ),
    ] = None


@remote(app, "list", text=views.print_jobs, empty="No jobs found.")
def list_jobs(client: Client, filters: ListFilters, limit: options.Newest = 20) -> Listed:
    """List the newest jobs."""
    given = asdict(filters)
    labels, created_after = options.labels(given.pop("label") or ()), options.moment_since(given.pop("since"))
    model = given.pop("model")
    given["model"] = model if model is None or "@" not in model else client.model(model).id
    return Listed(list(client.jobs(**given, labels=labels, created_after=created_after, limit=limit + 1)), limit)


@remote(app, text=views.print_job)
def show(job: JobId, client: Client) -> JobOut:
    """Show a job: state, times, results, and the error if it failed."""
    return client.job(job_id(client, job))


def _canceled(found: JobOut) -> str:
    from service.jobs.schemas import TERMINAL

    note = " (it had ended before)" if found.state in TERMINAL - {"canceled"} else ""
    return f"{found.id} is {found.state}{note}"


@remote(app, line=_canceled)
def cancel(job: JobId, client: Client) -> JobOut:
    """Cancel a job."""
    return client.cancel(job_id(client, job))


command(app)(follow)
command(app)(fetch)


@command(app)
def retry(job: JobId, waiting: WaitOptions, service: Service, printing: ResultPrinting) -> None:
    """Submit the request of a finished job again; print the new job's id."""
    waiting.check()
    with service.connected() as client:
        finish(client, client.retry(job_id(client, job)), waiting, printing)


@command(app)
def clone(
    job: JobId,
    changes: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON",
            help='Changes, such as \'{"config": {"preset": "xint8"}}\'; null removes a field.',
        ),
    ] = None,
    config: Annotated[
        Path | None,
        options.file_option("FILE.json|.yaml|.toml", "A config merged into the job's."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new job.")] = None,
    *,
    waiting: WaitOptions,
    service: Service,
    printing: ResultPrinting,
) -> None:
    """Submit the request of a job with changes; print the new job's id."""
    from service.contracts.documents import file_document

    waiting.check()
    wanted = {} if changes is None else _object(changes)
    for option, field, value in (("--config", "config", config), ("--name", "name", name)):
        if value is not None and field in wanted:
            raise typer.BadParameter(f"{field} is in JSON as well.", param_hint=option)
    if changes is None and config is None and name is None:
        raise typer.BadParameter("Give at least one change: JSON, --config or --name. To change nothing, use retry.")
    if config is not None:
        wanted["config"] = file_document(config)
    if name is not None:
        wanted["name"] = name
    with service.connected() as client:
        finish(client, client.clone(job_id(client, job), wanted), waiting, printing)


def _object(text: str) -> dict[str, Any]:
    try:
        found = js.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="JSON") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("must be an object: {...}", param_hint="JSON")
    return found


def _signed(given: list[str]) -> list[str]:
    if not all("=" in text for text in given):
        raise typer.BadParameter("must be KEY=VALUE.", param_hint="KEY=VALUE")
    return given


@remote(app, line=lambda found: " ".join(f"{name}={value}" for name, value in found.labels.items()))
def label(
    job: JobId,
    labels: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE|KEY=", callback=_signed, help="KEY= removes the label.")
    ],
    client: Client,
) -> JobOut:
    """Set or remove labels of a job."""
    given = [text.partition("=") for text in labels]
    return client.rename(job_id(client, job), {"labels": {name: value or None for name, _, value in given}})


@command(app)
def logs(
    job: JobId,
    service: Service,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per entry.")] = False,
) -> None:
    """Print the log of a job."""
    with service.connected() as client:
        text = client.logs(job_id(client, job))
    if not json:
        typer.echo(text, nl=False)
        return
    for line in text.splitlines():
        moment, attempt, level, message = line.split(" ", 3)
        print_line({"created_at": moment, "attempt": int(attempt), "level": level.lower(), "message": message})


@remote(app)
def rm(job: JobId, client: Client) -> Done:
    """Delete a finished job with its log, report and artifacts."""
    found = job_id(client, job)
    client.delete_job(found)
    return deleted(found)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(options.JobOptions):
    """What an evaluation on a service takes beside its inputs."""

    idempotency_key: options.JobIdempotencyKey = None

    def request(self) -> SubmitOptions:
        """The same as the client takes it."""
        return {**super().request(), "idempotency_key": self.idempotency_key}


@command(app)
def evaluate(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Id of a model, or NAME@3, NAME@latest, NAME@prod; quantized or not.")
    ],
    evaluation: Annotated[str, typer.Option(metavar="DATASET", help="Id of a dataset, or NAME@latest.")],
    reference: Annotated[str | None, typer.Option(metavar="MODEL", help="Baseline, such as the float model.")] = None,
    config: options.MetricsFile = None,
    *,
    job: EvaluationOptions,
    waiting: WaitOptions,
    service: Service,
    printing: ResultPrinting,
) -> None:
    """Submit an evaluation of a model; print the job's id."""
    from worker.commands.recipes import load_recipe

    waiting.check()
    request, recipe = job.request(), load_recipe(None, config)
    with service.connected() as client:
        with recipe.pointing_into_file():
            spec = recipe.config.evaluation
            made = client.submit_evaluation(
                model=model, evaluation=evaluation, reference=reference, spec=spec, **request
            )
        finish(client, made, waiting, printing)


@command(app)
def to_mlflow(
    job: JobId,
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URL", help="MLflow tracking server. Default: MLFLOW_TRACKING_URI.")
    ] = None,
    experiment: Annotated[str, typer.Option(help="Name of the experiment; created if missing.")] = "quantmill",
    run_name: Annotated[str | None, typer.Option(help="Name of the run. Default: the job's name or id.")] = None,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Register a version of this model if the job passed its gate.")
    ] = None,
    *,
    service: Service,
    json: options.Json = False,
) -> None:
    """Log a succeeded job as an MLflow run. Requires quantmill[mlflow]."""
    from service.client.mlflow_runs import log_job

    # MLflow prints links of its own: standard output is for what was asked for
    with service.connected() as client, redirect_stdout(sys.stderr):
        done = log_job(
            client,
            job_id(client, job),
            experiment=experiment,
            tracking_uri=tracking_uri,
            run_name=run_name,
            register_as=register,
        )
    if json:
        print_json(asdict(done))
        return
    typer.echo(f"run       {done.run_id}{' (existing)' if done.was_there else ''}")
    if done.model_version is not None:
        typer.echo(f"version   {register} {done.model_version}")


register_hand_over(app)
