"""``quantmill models`` and ``quantmill datasets``: what a service has, by name, version and alias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.contracts.errors import InvalidRequestError
from worker.commands import options, push
from worker.commands.json_output import print_deleted, print_items, print_json
from worker.commands.options import Json, Key, Server

if TYPE_CHECKING:  # these load what takes long, and are loaded once a command needs them
    from service.client import Client
    from service.datasets.schemas import DatasetOut
    from service.models.schemas import ModelOut
    from service.names.aliases.schemas import AliasOut

Word = Literal["model", "dataset"]
REFERENCE = "Id, or NAME@3 (a version), NAME@latest (the newest that is ready), NAME@prod (an alias)."
Reference = Annotated[str, typer.Argument(metavar="REFERENCE", help=REFERENCE)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name alone.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Those with this tag; repeatable.")]


def make_app(word: Word) -> typer.Typer:
    """The commands of one noun."""
    app = typer.Typer(
        name=f"{word}s", help=f"The {word}s of a service: push, list, show, versions, alias, rm.", no_args_is_help=True
    )
    app.command("push")(push.push_model if word == "model" else push.push_dataset)

    @app.command("list", help=f"The newest {word}s, one line each.")
    def list_nouns(
        server: Server = None,
        key: Key = None,
        name: Annotated[str | None, typer.Option(help="The versions of this name.")] = None,
        tag: Tags = None,
        sha256: Annotated[str | None, typer.Option(help="Those of which this is the main file.")] = None,
        limit: options.Newest = 20,
        json: Json = False,
    ) -> None:
        from worker.commands.noun_views import print_nouns
        from worker.commands.server import connected

        tags = _tags(tag)
        with connected(server, key) as client:
            found = _of(client, word, name=name, tags=tags, sha256=sha256, limit=limit + 1)
        more = len(found) > limit
        if json:
            print_items(found[:limit], has_more=more)
            return
        print_nouns(word, found[:limit])
        if more:
            typer.echo(f"There are more: --limit shows up to {options.MOST_LISTED} (shown: {limit}).", err=True)

    @app.command(help=f"One {word}: its version, what is said of it, and its aliases.")
    def show(reference: Reference, server: Server = None, key: Key = None, json: Json = False) -> None:
        from worker.commands.noun_views import print_noun
        from worker.commands.server import connected

        with connected(server, key) as client:
            found = _one(client, word, reference)
            aliases = [] if json else client.aliases(word, found.id)
        if json:
            print_json(found)
            return
        print_noun(word, found, [alias.alias for alias in aliases if alias.id == found.id])

    @app.command(help="All versions of a name, the newest first.")
    def versions(name: Name, server: Server = None, key: Key = None, json: Json = False) -> None:
        from worker.commands.noun_views import print_nouns
        from worker.commands.server import connected

        with connected(server, key) as client:
            found = _of(client, word, name=name)
        if not found:
            raise InvalidRequestError(
                f"There is no {word} of the name {name!r}.", hint=f"quantmill {word}s list shows what there is."
            )
        if json:
            print_items(found)
            return
        print_nouns(word, found)

    @app.command(help="The aliases of a name; with ALIAS, have it stand for this version.")
    def alias(
        reference: Reference,
        alias: Annotated[str | None, typer.Argument(metavar="[ALIAS]", help="A word such as prod.")] = None,
        server: Server = None,
        key: Key = None,
        drop: Annotated[bool, typer.Option("--drop", help="End the alias.")] = False,
        json: Json = False,
    ) -> None:
        from worker.commands.noun_views import print_aliases
        from worker.commands.server import connected

        if drop and alias is None:
            raise typer.BadParameter("say which alias is to end.", param_hint="ALIAS")
        with connected(server, key) as client:
            found = _changed(client, word, reference, alias, drop=drop)
        if json:
            print_items(found)
            return
        print_aliases(found)

    @app.command(help=f"Delete a {word} that nothing needs, by its id or NAME@3.")
    def rm(reference: Reference, server: Server = None, key: Key = None, json: Json = False) -> None:
        from worker.commands.server import connected

        with connected(server, key) as client:
            client.delete(word, reference)
        print_deleted(reference, as_json=json)

    return app


def _of(
    client: Client,
    word: Word,
    *,
    name: str | None = None,
    tags: dict[str, str] | None = None,
    sha256: str | None = None,
    limit: int | None = None,
) -> list[ModelOut | DatasetOut]:
    call = client.models if word == "model" else client.datasets
    return list(call(name=name, tags=tags, sha256=sha256, limit=limit))


def _one(client: Client, word: Word, reference: str) -> ModelOut | DatasetOut:
    return client.model(reference) if word == "model" else client.dataset(reference)


def _changed(client: Client, word: Word, reference: str, alias: str | None, *, drop: bool) -> list[AliasOut]:
    """The aliases of the name, after what was asked for."""
    noun_id = _one(client, word, reference).id
    if alias is not None:
        if drop:
            client.drop_alias(word, noun_id, alias)
        else:
            client.set_alias(word, noun_id, alias)
    return client.aliases(word, noun_id)


def _tags(given: list[str] | None) -> dict[str, str]:
    for text in given or []:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE.", param_hint="--tag")
    return dict(text.split("=", 1) for text in given or [])


apps = (make_app("model"), make_app("dataset"))
