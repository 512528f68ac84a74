"""``quantmill reproduce``: run a job once more, and compare the bytes of the models that it gives."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from service.contracts.runner import DATA_KIND
from worker.commands.job_waiting import Timeout
from worker.commands.jobs import JobId
from worker.commands.json_output import print_json
from worker.commands.options import Json, Key, Quiet, Server

if TYPE_CHECKING:
    from service.artifacts.schemas import ArtifactOut
    from service.client import Client
    from service.contracts.report.whole import Manifest

_MODEL_ENDINGS = (".onnx", ".onnx.data")


@dataclass(frozen=True)
class Pair:
    """One file as both runs gave it; None: that run did not."""

    kind: str
    first_sha256: str | None
    again_sha256: str | None
    identical: bool


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(reproduce)


def reproduce(
    job: JobId,
    server: Server = None,
    key: Key = None,
    timeout: Timeout = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a job that has succeeded once more and compare all bytes of its models. Exit code 6 if they differ."""
    from service.attestations.errors import NotReproducedError
    from worker.commands import remote
    from worker.commands.console import ProgressView
    from worker.commands.server import connected

    with connected(server, key) as client, ProgressView(quiet=quiet) as view:
        before = client.report(job).manifest
        installed = client.version()
        if installed != before.engine_version:
            note = f"The job ran on engine {before.engine_version}; the service has {installed} now."
            typer.echo(f"note: {note} Other bytes are to be expected.", err=True)
        again = client.retry(job)
        after = remote.follow(client, again.id, view=view, timeout_seconds=timeout).manifest
        with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
            pairs = list(_pairs(client, job, again.id, Path(folder)))
    identical = bool(pairs) and all(pair.identical for pair in pairs)
    reasons = [] if identical else list(_reasons(before, after))
    if as_json:
        document = {"identical": identical, "job": job, "again": again.id, "reasons": reasons}
        print_json({**document, "files": [asdict(pair) for pair in pairs]})
    else:
        for pair in pairs:
            word = "identical" if pair.identical else "DIFFERENT"
            told = f"sha256 {pair.first_sha256}" if pair.identical else f"{pair.first_sha256} / {pair.again_sha256}"
            typer.echo(f"{word:<10} {pair.kind}  {told}")
        typer.echo(f"{'again':<10} {again.id}")
    if not identical:
        raise NotReproducedError(
            f"The job {again.id} gave other bytes than {job}: {' '.join(reasons)}",
            hint="Bytes are promised for the same engine, libraries and kind of processor: docs/attestations.md.",
        )


def _pairs(client: Client, first: str, again: str, folder: Path) -> Iterator[Pair]:
    """Every model file of either run, downloaded and compared byte by byte."""
    ours, theirs = _models(client, first), _models(client, again)
    for kind in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(kind), theirs.get(kind)
        same = one is not None and other is not None
        if one is not None and other is not None:
            paths = (folder / "first", folder / "again")
            client.download_artifact(one.id, paths[0])
            client.download_artifact(other.id, paths[1])
            same = filecmp.cmp(*paths, shallow=False)
            filecmp.clear_cache()
        yield Pair(kind, None if one is None else one.sha256, None if other is None else other.sha256, same)


def _models(client: Client, job: str) -> dict[str, ArtifactOut]:
    found = client.artifacts(job)
    return {item.kind: item for item in found if item.filename.endswith(_MODEL_ENDINGS) or item.kind == DATA_KIND}


def _reasons(before: Manifest, after: Manifest) -> Iterator[str]:
    """In words, what was not the same in both runs, as far as their manifests tell."""
    told: dict[str, tuple[object, object]] = {
        "engine": (before.engine_version, after.engine_version),
        "threads": (before.threads, after.threads),
    }
    for name in sorted(before.versions.keys() | after.versions.keys()):
        told[name] = (before.versions.get(name), after.versions.get(name))
    changed = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
    for name, (then, now) in changed.items():
        yield f"{name} was {then} and is {now}."
    if after.timed_choice or before.timed_choice:
        yield "The gate's fallback has chosen the model by measured latency, which differs from run to run."
    elif not changed:
        yield "Engine, libraries and threads are the same: the kind of processor or of GPU may be another one."
