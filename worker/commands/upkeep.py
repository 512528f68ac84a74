"""``quantmill gc`` and ``quantmill scrub``: what upkeep does in the background, at once and with its figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from service.settings import Settings
from service.storage import FileStore
from worker.commands import options
from worker.commands.json_output import print_items, print_json
from worker.commands.options import DataDir

if TYPE_CHECKING:
    from service.db import Database
    from service.files.repository import FileName

EXIT_DAMAGED = 1
_Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(gc)
    app.command()(scrub)


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go; remove nothing.")] = False,
    as_json: _Json = False,
    data_dir: DataDir = None,
) -> None:
    """Collect what is past its time, as the reconciler does in its periods; safe while the service runs."""
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
    typer.echo(f"{'':<12} {'would go' if dry_run else 'went':>9} {'bytes':>15}  what, and when")
    for one in found:
        tally = tallies[one.name]
        typer.echo(f"{one.name:<12} {tally.items:>9} {tally.size_bytes:>15}  {one.removes}: {one.rule}")


def scrub(
    everything: Annotated[bool, typer.Option("--all", help="From the first file on, whatever was verified.")] = False,
    as_json: _Json = False,
    data_dir: DataDir = None,
) -> None:
    """Verify stored files against their digests, from where the last pass stopped; exit code 1 if any is damaged."""
    from worker.upkeep.scrub import Scrubber

    count = size_bytes = 0
    with _installation(data_dir=data_dir) as (settings, database, store):
        scrubber = Scrubber(database, store, period_seconds=settings.scrub_period_seconds)
        if everything:
            scrubber.begin_anew()
        while (verified := scrubber.step()) is not None:
            count, size_bytes = count + 1, size_bytes + (verified.size_bytes or 0)
        found = _damaged(database)
    if as_json:
        print_json({"files": count, "size_bytes": size_bytes, "damaged": [asdict(one) for one in found]})
    else:
        typer.echo(f"{count} files verified, {size_bytes} bytes; {len(found)} damaged or missing")
        for one in found:
            rows = ", ".join(f"{row.kind} {row.id} ({row.name})" for row in one.named_by)
            typer.echo(f"{one.sha256}  {one.damage}: {rows or 'no row names it any more'}")
    if found:
        raise typer.Exit(EXIT_DAMAGED)


@dataclass(frozen=True)
class _Damaged:
    """A damaged file and the rows that name it."""

    sha256: str
    damage: str
    named_by: list[FileName]


def _damaged(database: Database) -> list[_Damaged]:
    from service.files import repository as files

    with database.read() as session:
        found = files.damaged(session)
        return [_Damaged(one.sha256, one.damage, files.names_of(session, one.sha256)) for one in found]


@contextmanager
def _installation(**values: object) -> Iterator[tuple[Settings, Database, FileStore]]:
    """What the settings name, open."""
    from service.db import Database

    settings = options.load_settings(**values)
    settings.make_folders()
    database = Database(settings.database_url)
    try:
        yield settings, database, FileStore(settings.storage_dir)
    finally:
        database.close()
