"""Commands that need only the API server. ``register`` adds them to the command line."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from service.contracts.command_errors import ExitCode
from service.logs import configure_logging
from service.settings import Settings

# Event streams and long polls are open for as long as their clients like: a shutdown does not wait for them.
SHUTDOWN_SECONDS = 5

log = logging.getLogger(__name__)

Open = Annotated[bool, typer.Option("--open", help="Serve loopback without an API key.")]
DataDir = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Data directory.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(api)
    app.command()(migrate)
    app.command()(presets)
    app.command()(targets)


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = None,
    data_dir: DataDir = None,
    is_open: Open = False,
    fd: Annotated[int | None, typer.Option(help="Serve on this inherited listening socket.", hidden=True)] = None,
) -> None:
    """Run the API server."""
    import uvicorn

    from service.app import create_app
    from service.keys.start import start_refusal
    from service.limits import HEAD_BYTES
    from service.monitoring.serving import serving
    from service.process import hide_process
    from service.schema import require_migrated
    from service.server import BACKLOG, ApiServer, ProblemProtocol, bound_reading, raise_descriptor_limit

    settings = load_settings(host=host, port=port, data_dir=data_dir, open=is_open or None)
    refusal = start_refusal(settings)
    if refusal is not None:
        typer.echo(refusal, err=True)
        raise typer.Exit(ExitCode.USAGE)
    configure_logging(form=settings.log_format)
    hide_process()
    raise_descriptor_limit()
    api = create_app(settings)
    require_migrated(api.state.app.database, settings.schema_wait_seconds)
    config = uvicorn.Config(
        api,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the application has its own, which goes by its settings
        http=ProblemProtocol,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        timeout_keep_alive=max(1, round(settings.connection_idle_seconds)),
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    sockets = _listening(settings) if fd is None else [socket.socket(fileno=fd)]
    for each in sockets:
        bound_reading(each, settings.reading_seconds)
        log.info("listening on %s", each.getsockname())
    server = ApiServer(config, on_stop=api.state.app.notifier.release)
    with serving(settings, api.state.app.metrics), _announced(settings, sockets[0].getsockname()[1]):
        server.run(sockets=sockets)
    if not server.started:
        raise typer.Exit(1)


@contextmanager
def _announced(settings: Settings, port: int) -> Iterator[None]:
    """Let programs of the same user find the service's own key while it runs."""
    from service.keys import local
    from service.keys.files import LOCAL_KEY_FILE

    key_file = settings.data_dir / LOCAL_KEY_FILE
    if settings.open or settings.api_key is not None or not key_file.exists():
        yield
        return
    local.announce(port, key_file)
    try:
        yield
    finally:
        local.withdraw(port)


def _listening(settings: Settings) -> list[socket.socket]:
    """Sockets on the address of the settings.

    Raises:
        AddressError: it cannot be listened on.
    """
    from service.contracts.command_errors import AddressError
    from service.server import bound_sockets

    try:
        return bound_sockets(settings.host, settings.port)
    except OSError as error:
        raise AddressError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}.",
            hint="Choose another address with --host and --port; --port 0 takes any free port.",
        ) from None


def migrate(
    revision: Annotated[str, typer.Option(help="head, base, or a revision.")] = "head",
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Show what would be done, with locks and times, and change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Migrate the database to the current schema."""
    from service.db import Database, current_revision
    from service.db import migrate as run

    settings = load_settings(data_dir=data_dir)
    if plan_only:
        from service.upgrades.plan import plan
        from service.upgrades.text import as_json as document
        from service.upgrades.text import as_text

        if revision != "head":
            raise typer.BadParameter("a plan leads to head", param_hint="--revision")
        found = plan(settings.database_url)
        typer.echo(json.dumps(document(found), indent=2) if as_json else as_text(found))
        return
    if as_json:
        raise typer.BadParameter("goes with --plan", param_hint="--json")
    settings.make_folders()
    configure_logging()
    run(settings.database_url, revision)
    database = Database(settings.database_url)
    typer.echo(f"schema: {current_revision(database) or 'empty'}")
    database.close()


def presets(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|WORDS", help="A preset, or words to search for."),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="List all presets, those for AMD Quark as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets, or show one."""
    from service.presets import catalog

    search = " ".join(words) if words else None
    found = catalog.find(search)
    if as_json:
        typer.echo(catalog.to_json(found))
    elif search is not None and len(found) == 1:
        typer.echo(catalog.page(found[0].preset.name))
    else:
        everything = whole or search is not None
        typer.echo(catalog.as_text(found, whole=everything, with_pending=whole and search is None))


def targets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A target.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as the API returns it.")] = False,
) -> None:
    """List the hardware targets, or show one."""
    from service.targets import catalog

    if as_json:
        found = catalog.targets() if name is None else [catalog.named(name)]
        plain = [target.model_dump(mode="json", by_alias=True) for target in found]
        typer.echo(json.dumps({"items": plain} if name is None else plain[0], indent=2))
        return
    typer.echo(catalog.overview() if name is None else catalog.page(name))


def load_settings(**values: Any) -> Settings:
    """Settings from the environment, with the ``values`` that are not None on top."""
    return Settings(**{name: value for name, value in values.items() if value is not None})
