"""``quantmill gc`` and ``scrub``: what upkeep does, at once; ``backup`` and ``restore`` of the data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.settings import Settings
from service.storage import Store
from service.storage.opening import open_store
from worker.commands import options
from worker.commands.options import DataDir, PlainJson
from worker.commands.printing import print_items, print_json

if TYPE_CHECKING:
    from service.db import Database

EXIT_DAMAGED = 1


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(gc)
    app.command()(scrub)
    app.command()(backup)
    app.command()(restore)


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what it would delete.")] = False,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Delete expired data; safe while the service runs."""
    from worker.upkeep.registry import collect_everything, collectors

    with _installation(data_dir=data_dir) as (settings, database, store):
        found = collectors(settings, database, store)
        tallies = {
            one.name: one.count() if dry_run or one.collect is None else collect_everything(one) for one in found
        }
    if as_json:
        print_items(
            {
                "name": one.name,
                "removes": one.removes,
                "rule": one.rule,
                "collected": not dry_run and one.collect is not None,
                "items": tallies[one.name].items,
                "size_bytes": tallies[one.name].size_bytes,
            }
            for one in found
        )
        return
    typer.echo(f"{'':<12} {'to delete' if dry_run else 'deleted':>9} {'bytes':>15}  what: rule")
    for one in found:
        tally = tallies[one.name]
        typer.echo(f"{one.name:<12} {tally.items:>9} {tally.size_bytes:>15}  {one.removes}: {one.rule}")


def scrub(
    everything: Annotated[bool, typer.Option("--all", help="Start again from the first file.")] = False,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Verify stored files against their digests. Exit code 1 if any is damaged."""
    from service.files import repository as files
    from worker.upkeep.scrub import Scrubber

    count = size_bytes = 0
    with _installation(data_dir=data_dir) as (settings, database, store):
        scrubber = Scrubber(database, store, period_seconds=settings.scrub_period_seconds)
        if everything:
            scrubber.begin_anew()
        while (verified := scrubber.step()) is not None:
            count, size_bytes = count + 1, size_bytes + (verified.size_bytes or 0)
        with database.read() as session:
            found = [(one.sha256, one.damage, files.names_of(session, one.sha256)) for one in files.damaged(session)]
    if as_json:
        damaged = [
            {"sha256": sha256, "damage": damage, "named_by": list(map(asdict, rows))} for sha256, damage, rows in found
        ]
        print_json({"files": count, "size_bytes": size_bytes, "damaged": damaged})
    else:
        typer.echo(f"{count} files verified, {size_bytes} bytes; {len(found)} damaged or missing")
        for sha256, damage, rows in found:
            told = ", ".join(f"{row.kind} {row.id} ({row.name})" for row in rows)
            typer.echo(f"{sha256}  {damage}: {told or 'not in use'}")
    if found:
        raise typer.Exit(EXIT_DAMAGED)


@contextmanager
def _installation(**values: object) -> Iterator[tuple[Settings, Database, Store]]:
    """What the settings name, open."""
    from service.db import Database

    settings = options.load_settings(**values)
    settings.make_folders()
    database = Database(settings.database_url)
    try:
        yield settings, database, open_store(settings)
    finally:
        database.close()


def backup(
    dest: Annotated[
        Path, typer.Argument(metavar="DEST", help="A new folder, or the folder of an earlier backup to update.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify files that DEST has already; copy damaged ones again.")
    ] = False,
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Back up the data directory while the service runs. Exit code 1 if a file is missing."""
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
            f"{len(manifest.files)} files, {size_bytes} bytes, {done.copied} of them "
            f"({done.copied_bytes} bytes) copied now"
        )
        if manifest.open_uploads:
            typer.echo(f"{manifest.open_uploads} unfinished uploads are not in the backup")
        for file in manifest.missing:
            typer.echo(f"{file.sha256}  {file.damage}: not in the backup; `quantmill scrub --all` shows more")
    if manifest.missing:
        raise typer.Exit(EXIT_DAMAGED)


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of a backup.")],
    as_json: PlainJson = False,
    data_dir: DataDir = None,
) -> None:
    """Restore a backup into a new data directory."""
    from worker.upkeep.restore import restore_backup

    settings = options.load_settings(data_dir=data_dir)
    options.configure_logging(form=settings.log_format)
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
        f"{settings.data_dir} restored from {manifest.created_at:%Y-%m-%dT%H:%M:%SZ}: {len(manifest.files)} files. "
        f"Start it with `quantmill up --data-dir {settings.data_dir}`."
    )
    for file in manifest.missing:
        typer.echo(f"{file.sha256}  {file.damage}: not in the backup")
