"""``quantmill jobs``: submit jobs to a service, look at them, follow one to its end, fetch what it gave, cancel one."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from worker.commands import options
from worker.commands.hand_over_targets import Targets, given_targets
from worker.commands.job_waiting import FailOnGate, Timeout, Wait, Waiting, finish
from worker.commands.json_output import print_items, print_json
from worker.commands.options import Json, Key, Quiet, Server

app = typer.Typer(
    name="jobs",
    help="Jobs of a service: submit, evaluate, list, show, follow, fetch, cancel, retry, clone, label, logs, rm, "
    "hand-over, to-mlflow.",
    no_args_is_help=True,
)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, such as job_01jd3v8g5z7k2m4n6p8q0r1s2t.")]


def _kinds() -> tuple[str, ...]:
    from service.jobs.schemas import UsersKind

    return get_args(UsersKind)


def _states() -> tuple[str, ...]:
    from service.jobs.schemas import ShownState

    return get_args(ShownState)


def _verdicts() -> tuple[str, ...]:
    from service.contracts.report import Verdict

    return get_args(Verdict)


@app.command()
def submit(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Id of a model (quantmill models push prints it), or NAME@3, NAME@latest, NAME@prod.",
        ),
    ],
    calibration: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="Id of a dataset (quantmill datasets push prints it), or NAME@latest."),
    ] = None,
    evaluation: Annotated[str | None, typer.Option(metavar="DATASET", help="Id of another one.")] = None,
    preset: Annotated[str | None, typer.Option(help="Name of a preset; quantmill presets lists them.")] = None,
    config: options.ConfigFile = None,
    name: options.JobName = None,
    label: options.JobLabels = None,
    priority: options.JobPriority = 0,
    device: options.JobDevice = None,
    ranges_from: Annotated[
        str | None, typer.Option(metavar="JOB", help="Take over the calibrated ranges of a job on the same graph.")
    ] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="Take a job that would give the same, if there is.")] = False,
    targets: Targets = None,
    idempotency_key: options.JobIdempotencyKey = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the request, and tell what the job would take; submit nothing.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit a job on a model and data of the service; prints its id."""
    from worker.commands import local
    from worker.commands.job_views import print_validated
    from worker.commands.server import connected

    if preset is not None and config is not None:
        raise typer.BadParameter("--preset and --config exclude each other; a config may name its preset.")
    if dry_run and wait:
        raise typer.BadParameter("--dry-run submits nothing that --wait could wait for.")
    Waiting(wait, timeout, fail_on_gate).check()
    if dry_run and targets is not None:
        raise typer.BadParameter("--dry-run submits nothing that could be handed over.", param_hint="--targets")
    labels, hand_over = options.labels(label or ()), given_targets(targets)
    loaded = local.load_recipe(preset, config)
    if dry_run:
        with connected(server, key) as client, loaded.pointing_into_file():
            found = client.validate(
                loaded.config,
                model=model,
                calibration=calibration,
                evaluation=evaluation,
                device=device or "auto",
                priority=priority,
            )
        if json:
            print_json(found)
        else:
            print_validated(found)
        return
    with connected(server, key) as client:
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
                hand_over=hand_over,
                idempotency_key=idempotency_key,
            )
        finish(client, job, Waiting(wait, timeout, fail_on_gate), as_json=json, quiet=quiet)


@app.command("list")
def list_jobs(
    server: Server = None,
    key: Key = None,
    kind: Annotated[
        str | None, typer.Option(callback=options.one_of(_kinds), help="quantize or evaluate. Default: both.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            callback=options.one_of(_states), help="queued, running, canceling, succeeded, failed or canceled."
        ),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(callback=options.one_of(_verdicts), help="Of the report: pass, fail, undecided; none: no gate."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Those of this model: its id or NAME@3.")] = None,
    preset: Annotated[str | None, typer.Option(help="Those whose config has this preset.")] = None,
    name: Annotated[str | None, typer.Option(help="Those of exactly this name.")] = None,
    search: Annotated[str | None, typer.Option(help="A part of the name, in any case.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Those with this; repeatable.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Made later: 2026-01-31, 2026-01-31T12:00Z, or 90m, 12h, 7d ago.")
    ] = None,
    limit: options.Newest = 20,
    json: Json = False,
) -> None:
    """The newest jobs, one line each."""
    from worker.commands.job_views import print_jobs
    from worker.commands.server import connected

    labels, created_after = options.labels(label or ()), options.moment_since(since)
    with connected(server, key) as client:
        model_id = model if model is None or "@" not in model else client.model(model).id
        found = list(
            client.jobs(
                kind=kind,  # type: ignore[arg-type]  # the callbacks have checked the words
                state=state,  # type: ignore[arg-type]
                verdict=verdict,  # type: ignore[arg-type]
                model=model_id,
                preset=preset,
                name=name,
                search=search,
                labels=labels,
                created_after=created_after,
                limit=limit + 1,
            )
        )
    shown, more = found[:limit], len(found) > limit
    if json:
        print_items(shown, has_more=more)
        return
    print_jobs(shown)
    if more:
        typer.echo(f"There are more: --limit shows up to {options.MOST_LISTED} (shown: {limit}).", err=True)


@app.command()
def show(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """One job: where it stands, when it did what, and why it failed if it did."""
    from worker.commands.job_views import print_job
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.job(job)
    if json:
        print_json(found)
        return
    print_job(found)


@app.command()
def cancel(job: JobId, server: Server = None, key: Key = None, json: Json = False) -> None:
    """Cancel a queued job, ask a running one to stop; one that has ended stays as it is."""
    from service.jobs.schemas import TERMINAL
    from worker.commands.server import connected

    with connected(server, key) as client:
        found = client.cancel(job)
    if json:
        print_json(found)
        return
    note = " (it had ended before)" if found.state in TERMINAL - {"canceled"} else ""
    typer.echo(f"{found.id} is {found.state}{note}")
