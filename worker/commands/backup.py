"""``quantmill backup`` and ``quantmill restore``: the embedded data directory elsewhere, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worker.commands import options
from worker.commands.json_output import print_json
from worker.commands.options import DataDir

EXIT_DAMAGED = 1
_Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(backup)
    app.command()(restore)


def backup(
    dest: Annotated[
        Path, typer.Argument(metavar="DEST", help="A new folder, or that of an earlier backup, which becomes this one.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read what DEST has already, too; copy anew what is damaged there.")
    ] = False,
    as_json: _Json = False,
    data_dir: DataDir = None,
) -> None:
    """Copy the data directory of `quantmill up`, which may run; exit code 1 if a stored file is not in the copy."""
    from worker.upkeep.backup import make_backup

    done = make_backup(options.load_settings(data_dir=data_dir), dest, verify=verify)
    manifest = done.manifest
    size_bytes = sum(file.size_bytes for file in manifest.files)
    if as_json:
        told = {
            "created_at": manifest.created_at.isoformat(),
            "database_bytes": manifest.database.size_bytes,
            "files": len(manifest.files),
            "size_bytes": size_bytes,
            "copied": done.copied,
            "copied_bytes": done.copied_bytes,
            "missing": [file.model_dump() for file in manifest.missing],
            "open_uploads": manifest.open_uploads,
        }
        print_json(told)
    else:
        typer.echo(
            f"database of {manifest.created_at:%Y-%m-%dT%H:%M:%SZ}, {manifest.database.size_bytes} bytes; "
            f"{len(manifest.files)} files, {size_bytes} bytes, of which {done.copied}, {done.copied_bytes} bytes, "
            "were copied now"
        )
        if manifest.open_uploads:
            typer.echo(f"{manifest.open_uploads} unfinished uploads: their bytes are not in the backup")
        for file in manifest.missing:
            typer.echo(f"{file.sha256}  {file.damage}: not in the backup; quantmill scrub --all tells more")
    if manifest.missing:
        raise typer.Exit(EXIT_DAMAGED)


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The folder that quantmill backup wrote.")],
    as_json: _Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a new data directory of a backup: every file is verified, and it is complete or not there at all."""
    from worker.upkeep.restore import restore_backup

    options.configure_logging()
    settings = options.load_settings(data_dir=data_dir)
    manifest = restore_backup(settings, source)
    if as_json:
        told = {
            "data_dir": str(settings.data_dir),
            "created_at": manifest.created_at.isoformat(),
            "files": len(manifest.files),
            "missing": [file.model_dump() for file in manifest.missing],
        }
        print_json(told)
        return
    typer.echo(
        f"{settings.data_dir} is as it was at {manifest.created_at:%Y-%m-%dT%H:%M:%SZ}: {len(manifest.files)} files; "
        "start it by quantmill up --data-dir"
    )
    for file in manifest.missing:
        typer.echo(f"{file.sha256}  {file.damage}: was not in the backup")
