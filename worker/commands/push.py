"""``quantmill models push`` and ``datasets push``: files of this host become models and datasets of a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.commands import options
from worker.commands.json_output import print_json
from worker.commands.options import Json, Key, Preprocessing, Quiet, Server

if TYPE_CHECKING:
    from pydantic import BaseModel

Name = Annotated[str | None, typer.Option(help="For people. Default: that of the file.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="What is to be said of it.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="To find it by; may be given again.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is validated.")]


def push_model(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL.onnx|NEW.safetensors",
            exists=True,
            dir_okay=False,
            readable=True,
            help="A model; the files of its external data are found by themselves. Or new weights, with --skeleton.",
        ),
    ],
    name: Name = None,
    skeleton: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Id of a ready model: the file holds new weights for its graph.")
    ] = None,
    description: Description = None,
    tag: Tags = None,
    wait: Wait = True,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Upload a model; prints its id. Goes on after broken connections; exit code 1 if the model is rejected."""
    from worker.commands.console import ProgressView
    from worker.commands.server import connected
    from worker.commands.uploads import uploading

    tags = options.labels(tag or (), option="--tag")
    with connected(server, key) as client, ProgressView(quiet=quiet) as view:
        tell = uploading(view, path)
        if skeleton is None:
            model = client.push_model(path, name=name, tags=tags or None, description=description, progress=tell)
        else:
            model = client.create_model_version(skeleton, path, name=name, progress=tell)
            if tags or description is not None:
                model = client.update(model, tags=tags or None, description=description)
        if wait:
            view.progress("validate", message="on the service")
            model = client.wait_ready(model)
    _print(model, model.id, json)


def push_dataset(
    path: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", exists=True, readable=True, help=options.DATA_HELP)],
    name: Name = None,
    preprocessing: Preprocessing = None,
    description: Description = None,
    tag: Tags = None,
    wait: Wait = True,
    server: Server = None,
    key: Key = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Upload a dataset; prints its id. Goes on after broken connections; exit code 1 if the dataset is rejected."""
    from worker.commands.console import ProgressView
    from worker.commands.local import load_preprocessing, packed
    from worker.commands.server import connected
    from worker.commands.uploads import uploading

    spec, tags = load_preprocessing(preprocessing), options.labels(tag or (), option="--tag")
    with packed(path, path.name) as file, connected(server, key) as client, ProgressView(quiet=quiet) as view:
        tell = uploading(view, file)
        dataset = client.push_dataset(file, spec, name=name, tags=tags or None, description=description, progress=tell)
        if wait:
            view.progress("validate", message="on the service")
            dataset = client.wait_ready(dataset)
    _print(dataset, dataset.id, json)


def _print(noun: BaseModel, noun_id: str, as_json: bool) -> None:
    if as_json:
        print_json(noun)
    else:
        typer.echo(noun_id)
