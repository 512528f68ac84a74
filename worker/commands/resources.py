"""``quantmill models`` and ``datasets``: what a service has, by name, version and alias; ``dataset``: make one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

import typer

from service.contracts.errors import InvalidRequestError
from worker.commands import options, views
from worker.commands.command import Done, Listed, Printing, Service, command, deleted, remote
from worker.commands.command import show as show_answer
from worker.commands.printing import print_json

if TYPE_CHECKING:  # these load what takes long, and are loaded once a command needs them
    from service.client import Client
    from service.client.resources import ResourceFilters
    from service.datasets.schemas import DatasetOut
    from service.models.schemas import ModelOut
    from service.names.aliases.schemas import AliasOut

Word = Literal["model", "dataset"]
REFERENCE = "Id, or NAME@3 (a version), NAME@latest (the newest that is ready), NAME@prod (an alias)."
Reference = Annotated[str, typer.Argument(metavar="REFERENCE", help=REFERENCE)]
Base = Annotated[
    str | None,
    typer.Option("--skeleton", metavar="MODEL", help="Id of a model: the file contains new weights for it."),
]
Name = Annotated[str | None, typer.Option(help="Name. Default: that of the file.")]


@dataclass(frozen=True, kw_only=True)
class About:
    """What is said of an upload, and whether it is waited for."""

    description: Annotated[str | None, typer.Option(metavar="TEXT", help="Description.")] = None
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Tag; repeatable.")] = None
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the validation.")] = True

    @property
    def tags(self) -> dict[str, str] | None:
        """The tags; None where there are none.

        Raises:
            typer.BadParameter: one is no KEY=VALUE.
        """
        return options.labels(self.tag or (), option="--tag") or None


def push_model(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL.onnx|NEW.safetensors",
            exists=True,
            dir_okay=False,
            readable=True,
            help="A model, with its external data beside it; or new weights, with --skeleton.",
        ),
    ],
    name: Name = None,
    base: Annotated[
        str | None,
        typer.Option("--skeleton", metavar="MODEL", help="Id of a model: the file contains new weights for it."),
    ] = None,
    *,
    about: About,
    service: Service,
    printing: Printing,
) -> None:
    """Upload a model; print its id."""
    from worker.commands.console import ProgressView
    from worker.commands.remote import uploading

    tags, description = about.tags, about.description
    with service.connected() as client, ProgressView(quiet=printing.quiet) as view:
        tell = uploading(view, path)
        if base is None:
            model = client.push_model(path, name=name, tags=tags, description=description, progress=tell)
        else:
            model = client.create_model_version(base, path, name=name, progress=tell)
            if tags or description is not None:
                model = client.update(model, tags=tags, description=description)
        if about.wait:
            view.progress("validate", message="on the service")
            model = client.wait_ready(model)
    _print_pushed(model, printing)


def push_dataset(
    path: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", exists=True, readable=True, help=options.DATA_HELP)],
    name: Name = None,
    preprocessing: options.Preprocessing = None,
    *,
    about: About,
    service: Service,
    printing: Printing,
) -> None:
    """Upload a dataset; print its id."""
    from worker.commands.console import ProgressView
    from worker.commands.recipes import load_preprocessing, packed
    from worker.commands.remote import uploading

    spec, tags, description = load_preprocessing(preprocessing), about.tags, about.description
    with packed(path, path.name) as file, service.connected() as client, ProgressView(quiet=printing.quiet) as view:
        tell = uploading(view, file)
        dataset = client.push_dataset(file, spec, name=name, tags=tags, description=description, progress=tell)
        if about.wait:
            view.progress("validate", message="on the service")
            dataset = client.wait_ready(dataset)
    _print_pushed(dataset, printing)


def _print_pushed(resource: ModelOut | DatasetOut, printing: Printing) -> None:
    if printing.json:
        print_json(resource)
        return
    typer.echo(resource.id)
    version = f"uploaded as version {resource.version} of {resource.name}" if resource.version > 1 else ""
    told = "; ".join(filter(None, (version, getattr(resource, "fed_as", ""))))
    if told and not printing.quiet:
        typer.echo(told, err=True)


def make_app(word: Word) -> typer.Typer:
    """The commands of models, or of datasets."""
    app = typer.Typer(name=f"{word}s", help=f"Manage {word}s.", no_args_is_help=True)
    command(app, "push")(push_model if word == "model" else push_dataset)

    print_all = partial(views.print_resources, word)

    @remote(app, "list", text=print_all, empty=f"No {word}s found.", about=f"List the newest {word}s.")
    def list_resources(
        client: Client,
        name: Annotated[str | None, typer.Option(help="Only versions of this name.")] = None,
        tag: Annotated[
            list[str] | None,
            typer.Option(
                "--tag", metavar="KEY=VALUE", callback=_checked_tags, help="Only those with this tag; repeatable."
            ),
        ] = None,
        sha256: Annotated[str | None, typer.Option(help="Only those with this SHA-256 digest.")] = None,
        limit: options.Newest = 20,
    ) -> Listed:
        tags = dict(text.split("=", 1) for text in tag or ())
        return Listed(_of(client, word, name=name, tags=tags, sha256=sha256, limit=limit + 1), limit)

    @command(app, about=f"Show a {word}: version, description, tags and aliases.")
    def show(reference: Reference, service: Service, json: options.Json = False) -> None:
        with service.connected() as client:
            found = _one(client, word, reference)
            aliases = [] if json else client.aliases(word, found.id)
        if json:
            print_json(found)
            return
        views.print_resource(word, found, [alias.alias for alias in aliases if alias.id == found.id])

    @remote(app, text=print_all, empty=f"No {word}s found.", about="List all versions of a name, newest first.")
    def versions(
        name: Annotated[str, typer.Argument(metavar="NAME", help="The name, without a version.")], client: Client
    ) -> list[ModelOut | DatasetOut]:
        found = _of(client, word, name=name)
        if not found:
            raise InvalidRequestError(f"There is no {word} named {name!r}.", hint=f"GET /v1/{word}s lists them.")
        return found

    @command(app, about="List the aliases of a name; with ALIAS, move it to this version.")
    def alias(
        reference: Reference,
        alias: Annotated[str | None, typer.Argument(metavar="[ALIAS]", help="Alias, such as prod.")] = None,
        *,
        service: Service,
        drop: Annotated[bool, typer.Option("--drop", help="Delete the alias.")] = False,
        json: options.Json = False,
    ) -> None:
        if drop and alias is None:
            raise typer.BadParameter("required with --drop.", param_hint="ALIAS")
        with service.connected() as client:
            found = _changed(client, word, reference, alias, drop=drop)
        show_answer(found, json=json, text=views.print_aliases, empty="No aliases found.")

    @remote(app, about=f"Delete a {word} that is not in use.")
    def rm(reference: Reference, client: Client) -> Done:
        client.delete(word, reference)
        return deleted(reference)

    return app


def _checked_tags(given: list[str] | None) -> list[str] | None:
    for text in given or []:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE.", param_hint="--tag")
    return given


def _of(client: Client, word: Word, **filters: Unpack[ResourceFilters]) -> list[ModelOut | DatasetOut]:
    return list(client.models(**filters) if word == "model" else client.datasets(**filters))


def _one(client: Client, word: Word, reference: str) -> ModelOut | DatasetOut:
    return client.model(reference) if word == "model" else client.dataset(reference)


def _changed(client: Client, word: Word, reference: str, alias: str | None, *, drop: bool) -> list[AliasOut]:
    """The aliases of the name, after what was asked for."""
    resource_id = _one(client, word, reference).id
    if alias is not None:
        if drop:
            client.drop_alias(word, resource_id, alias)
        else:
            client.set_alias(word, resource_id, alias)
    return client.aliases(word, resource_id)


packing = typer.Typer(name="dataset", help="Create datasets from folders.", no_args_is_help=True)


@packing.callback()
def every_command() -> None:
    """Create datasets from folders."""


@packing.command()
def pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, readable=True)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DATA.tar", help="Write the archive to this file.")],
    as_json: options.PlainJson = False,
) -> None:
    """Pack a folder of pictures or WAV files into a .tar."""
    from worker.quantizer.data.media.packing import pack_folder

    if output.suffix.lower() != ".tar":
        raise typer.BadParameter(f"{output} does not end in .tar.", param_hint="--output")
    options.output_path(output)
    if output.resolve().is_relative_to(folder.resolve()):
        raise typer.BadParameter(f"{output} is inside {folder}.", param_hint="--output")
    packed = pack_folder(folder, output)
    if as_json:
        facts = {"files": packed.files, "content": packed.content, "classes": packed.classes}
        print_json({"path": str(output), **facts})
        return
    labelled = "no labels" if packed.classes is None else f"{packed.classes} classes"
    typer.echo(f"{output}  {packed.files} {packed.content}, {labelled}")


apps = (make_app("model"), make_app("dataset"))
