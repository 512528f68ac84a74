"""``quantmill jobs to-mlflow``: hand a job's results over to MLflow."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from worker.commands.jobs import JobId
from worker.commands.json_output import print_json
from worker.commands.options import Json, Key, Server


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
    server: Server = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Log a job that has succeeded as a run of MLflow; once more, it is the same run. Needs quantmill[mlflow]."""
    from service.client.mlflow_runs import log_job
    from worker.commands.server import connected

    # MLflow prints links of its own: standard output is for what was asked for
    with connected(server, key) as client, redirect_stdout(sys.stderr):
        done = log_job(
            client, job, experiment=experiment, tracking_uri=tracking_uri, run_name=run_name, register_as=register
        )
    if json:
        print_json(dataclasses.asdict(done))
        return
    typer.echo(f"run       {done.run_id}{' (was there)' if done.was_there else ''}")
    if done.model_version is not None:
        typer.echo(f"version   {register} {done.model_version}")
