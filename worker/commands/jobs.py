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
from worker.commands.command import Done, Listed, Printing, Service, command, deleted, remote
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
    help="Jobs of a service: submit, evaluate, list, show, follow, fetch, cancel, retry, clone, label, logs, rm, "
    "hand-over, to-mlflow.",
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
    evaluation: Annotated[str | None, typer.Option(metavar="DATASET", help="Id of another one.")] = None
    preset: Annotated[str | None, typer.Option(help="Name of a preset; quantmill presets lists them.")] = None
    config: options.ConfigFile = None


@dataclass(frozen=True, kw_only=True)
class QuantizationFlags(options.JobOptions):
    """What a quantization on a service takes beside its inputs."""

    device: options.JobDevice = None
    ranges_from: Annotated[
        str | None, typer.Option(metavar="JOB", help="Take over the calibrated ranges of a job on the same graph.")
    ] = None
    reuse: Annotated[bool, typer.Option("--reuse", help="Take a job that would give the same, if there is.")] = False
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
        bool, typer.Option("--dry-run", help="Check the request, and tell what the job would take; submit nothing.")
    ] = False,
    *,
    waiting: WaitOptions,
    service: Service,
    printing: Printing,
) -> None:
    """Submit a job on a model and data of the service; prints its id."""
    from worker.commands.recipes import load_recipe

    options.one_recipe(inputs.preset, inputs.config)
    if dry_run and waiting.wait:
        raise typer.BadParameter("--dry-run submits nothing that --wait could wait for.")
    waiting.check()
    if dry_run and job.targets is not None:
        raise typer.BadParameter("--dry-run submits nothing that could be handed over.", param_hint="--targets")
    request, loaded = job.request(), load_recipe(inputs.preset, inputs.config)
    with service.connected() as client:
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
            help="Of the report: pass, fail, undecided; none: no gate.",
        ),
    ] = None
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Those of this model: its id or NAME@3.")] = None
    preset: Annotated[str | None, typer.Option(help="Those whose config has this preset.")] = None
    name: Annotated[str | None, typer.Option(help="Those of exactly this name.")] = None
    search: Annotated[str | None, typer.Option(help="A part of the name, in any case.")] = None
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", callback=options.checked_labels, help="Those with this; repeatable."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            callback=options.checked_moment,
            help="Made later: 2026-01-31, 2026-01-31T12:00Z, or 90m, 12h, 7d ago.",
        ),
    ] = None


@remote(app, "list", text=views.print_jobs)
def list_jobs(client: Client, filters: ListFilters, limit: options.Newest = 20) -> Listed:
    """The newest jobs, one line each."""
    given = asdict(filters)
    labels, created_after = options.labels(given.pop("label") or ()), options.moment_since(given.pop("since"))
    model = given.pop("model")
    given["model"] = model if model is None or "@" not in model else client.model(model).id
    return Listed(list(client.jobs(**given, labels=labels, created_after=created_after, limit=limit + 1)), limit)


@remote(app, text=views.print_job)
def show(job: JobId, client: Client) -> JobOut:
    """One job: where it stands, when it did what, and why it failed if it did."""
    return client.job(job)


def _canceled(found: JobOut) -> str:
    from service.jobs.schemas import TERMINAL

    note = " (it had ended before)" if found.state in TERMINAL - {"canceled"} else ""
    return f"{found.id} is {found.state}{note}"


@remote(app, line=_canceled)
def cancel(job: JobId, client: Client) -> JobOut:
    """Cancel a queued job, ask a running one to stop; one that has ended stays as it is."""
    return client.cancel(job)


command(app)(follow)
command(app)(fetch)


@command(app)
def retry(job: JobId, waiting: WaitOptions, service: Service, printing: Printing) -> None:
    """Submit what a job that has ended was asked for once more; prints the new job's id."""
    waiting.check()
    with service.connected() as client:
        finish(client, client.retry(job), waiting, printing)


@command(app)
def clone(
    job: JobId,
    changes: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help='Changes of the request, such as \'{"config": {"preset": "xint8"}}\'.'),
    ] = None,
    config: Annotated[
        Path | None,
        options.file_option("FILE.json|.yaml|.toml", "A recipe, laid over the job's config."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the new job.")] = None,
    *,
    waiting: WaitOptions,
    service: Service,
    printing: Printing,
) -> None:
    """Submit what a job was asked for with changes, null takes a field away; prints the new job's id."""
    from worker.commands.recipes import recipe_document

    waiting.check()
    wanted = {} if changes is None else _object(changes)
    for option, field, value in (("--config", "config", config), ("--name", "name", name)):
        if value is not None and field in wanted:
            raise typer.BadParameter(f"{field} stands in JSON as well.", param_hint=option)
    if changes is None and config is None and name is None:
        raise typer.BadParameter("say what is to be another: JSON, --config or --name; retry changes nothing.")
    if config is not None:
        wanted["config"] = recipe_document(config)
    if name is not None:
        wanted["name"] = name
    with service.connected() as client:
        finish(client, client.clone(job, wanted), waiting, printing)


def _object(text: str) -> dict[str, Any]:
    try:
        found = js.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is no JSON: {error}", param_hint="JSON") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("the changes are an object: {...}", param_hint="JSON")
    return found


def _signed(given: list[str]) -> list[str]:
    if not all("=" in text for text in given):
        raise typer.BadParameter("a label is KEY=VALUE.", param_hint="KEY=VALUE")
    return given


@remote(app, line=lambda found: " ".join(f"{name}={value}" for name, value in found.labels.items()))
def label(
    job: JobId,
    labels: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE|KEY=", callback=_signed, help="KEY= takes the label away.")
    ],
    client: Client,
) -> JobOut:
    """Change the labels of a job, whatever its state; those that are not named stay."""
    given = [text.partition("=") for text in labels]
    return client.rename(job, {"labels": {name: value or None for name, _, value in given}})


@command(app)
def logs(
    job: JobId,
    service: Service,
    json: Annotated[bool, typer.Option("--json", help="An entry a line, as JSON on standard output.")] = False,
) -> None:
    """The log of a job: a line per entry, with time in UTC, attempt and level."""
    with service.connected() as client:
        text = client.logs(job)
    if not json:
        typer.echo(text, nl=False)
        return
    for line in text.splitlines():
        moment, attempt, level, message = line.split(" ", 3)
        print_line({"created_at": moment, "attempt": int(attempt), "level": level.lower(), "message": message})


@remote(app)
def rm(job: JobId, client: Client) -> Done:
    """Forget a job that has ended, with its log, report and artifacts."""
    client.delete_job(job)
    return deleted(job)


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
    reference: Annotated[
        str | None, typer.Option(metavar="MODEL", help="What it is held against, such as its float model.")
    ] = None,
    config: options.MetricsFile = None,
    *,
    job: EvaluationOptions,
    waiting: WaitOptions,
    service: Service,
    printing: Printing,
) -> None:
    """Measure a model of the service, beside another one if that is given; prints the job's id."""
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
        str | None, typer.Option(metavar="URL", help="Of MLflow. Default: its own, MLFLOW_TRACKING_URI.")
    ] = None,
    experiment: Annotated[str, typer.Option(help="By name; it is made if there is none.")] = "quantmill",
    run_name: Annotated[str | None, typer.Option(help="Default: the job's name, or its id.")] = None,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a version of this registered model, if the job passed.")
    ] = None,
    *,
    service: Service,
    json: options.Json = False,
) -> None:
    """Log a job that has succeeded as a run of MLflow; once more, it is the same run. Needs quantmill[mlflow]."""
    from service.client.mlflow_runs import log_job

    # MLflow prints links of its own: standard output is for what was asked for
    with service.connected() as client, redirect_stdout(sys.stderr):
        done = log_job(
            client, job, experiment=experiment, tracking_uri=tracking_uri, run_name=run_name, register_as=register
        )
    if json:
        print_json(asdict(done))
        return
    typer.echo(f"run       {done.run_id}{' (was there)' if done.was_there else ''}")
    if done.model_version is not None:
        typer.echo(f"version   {register} {done.model_version}")


register_hand_over(app)
