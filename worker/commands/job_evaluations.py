"""``quantmill jobs evaluate``: measure a model of the service on data of the service."""

from __future__ import annotations

from typing import Annotated

import typer

from worker.commands import options
from worker.commands.job_waiting import FailOnGate, Timeout, Wait, Waiting, finish
from worker.commands.options import Json, Key, Quiet, Server


def evaluate(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Id of a model, or NAME@3, NAME@latest, NAME@prod; quantized or not.")
    ],
    evaluation: Annotated[str, typer.Option(metavar="DATASET", help="Id of a dataset, or NAME@latest.")],
    reference: Annotated[
        str | None, typer.Option(metavar="MODEL", help="What it is held against, such as its float model.")
    ] = None,
    config: options.MetricsFile = None,
    name: options.JobName = None,
    label: options.JobLabels = None,
    priority: options.JobPriority = 0,
    idempotency_key: options.JobIdempotencyKey = None,
    wait: Wait = False,
    timeout: Timeout = None,
    fail_on_gate: FailOnGate = False,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model of the service, beside another one if that is given; prints the job's id."""
    from worker.commands import local
    from worker.commands.server import connected

    waiting = Waiting(wait, timeout, fail_on_gate)
    waiting.check()
    labels, recipe = options.labels(label or ()), local.load_recipe(None, config)
    with connected(server, key) as client:
        with recipe.pointing_into_file():
            job = client.submit_evaluation(
                model=model,
                evaluation=evaluation,
                reference=reference,
                spec=recipe.config.evaluation,
                name=name,
                labels=labels,
                priority=priority,
                idempotency_key=idempotency_key,
            )
        finish(client, job, waiting, as_json=json, quiet=quiet)
