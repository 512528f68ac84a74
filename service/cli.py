"""Commands that need only the front desk. ``register`` adds them to the command line."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from service.settings import Settings

EXIT_USAGE = 2
# Event streams and long polls are open for as long as their clients like: a shutdown does not wait for them.
SHUTDOWN_SECONDS = 5

DataDir = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Home of everything kept on local disk.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(api)
    app.command()(migrate)
    app.command()(presets)
    app.command()(targets)


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = None,
    data_dir: DataDir = None,
    fd: Annotated[int | None, typer.Option(help="Serve on this inherited listening socket.", hidden=True)] = None,
) -> None:
    """Serve the HTTP API. The database must have been migrated."""
    import uvicorn

    from service.app import create_app

    settings = load_settings(host=host, port=port, data_dir=data_dir)
    refusal = binding_refusal(settings)
    if refusal is not None:
        typer.echo(refusal, err=True)
        raise typer.Exit(EXIT_USAGE)
    configure_logging()
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = uvicorn.Server(config)
    server.run(sockets=None if fd is None else [socket.socket(fileno=fd)])
    if not server.started:
        raise typer.Exit(1)


def migrate(
    revision: Annotated[str, typer.Option(help="head, base, or the name of a revision.")] = "head",
    data_dir: DataDir = None,
) -> None:
    """Bring the database's schema up to date (or to a given revision)."""
    from service.db import Database, current_revision
    from service.db import migrate as run

    settings = load_settings(data_dir=data_dir)
    settings.make_folders()
    run(settings.database_url, revision)
    database = Database(settings.database_url)
    typer.echo(f"schema: {current_revision(database) or 'empty'}")
    database.close()


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One preset, by any of its names.")] = None,
) -> None:
    """List the presets, or show one: its config, what onnxruntime runs natively, and what differs from AMD Quark."""
    from service.presets import catalog

    typer.echo(catalog.overview() if name is None else catalog.page(name))


def targets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One target, with its options.")] = None,
) -> None:
    """List the targets, or show one: what it runs, and the rules that a config may switch."""
    from service.targets import catalog

    typer.echo(catalog.overview() if name is None else catalog.page(name))


def configure_logging(level: int = logging.INFO) -> None:
    """One line per record on standard error, UTC."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("alembic", "kombu.connection"):
        logging.getLogger(noisy).setLevel(max(level, logging.ERROR))


def load_settings(**values: Any) -> Settings:
    """Settings from the environment, with the ``values`` that are not None on top."""
    return Settings(**{name: value for name, value in values.items() if value is not None})


def binding_refusal(settings: Settings) -> str | None:
    """Why the API must not listen where it is told to; None if it may."""
    if settings.api_key is not None or is_loopback(settings.host):
        return None
    return (
        f"error: refusing to listen on {settings.host} without a key: everybody on the network could use the service.\n"
        "hint: set QUANTMILL_API_KEY, or listen on 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener on ``host``: every address that it stands for is loopback."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)  # noqa: S104 - what "" means
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
