"""``quantmill verify`` and ``reproduce``: whether a file is what a service has attested, or gives a job once more."""

from __future__ import annotations

import filecmp
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.contracts.runner import DATA_KIND
from worker.commands import options
from worker.commands.command import Printing, Service, command, job_id
from worker.commands.job_results import SUFFIX, Timeout, attestation_path
from worker.commands.options import DataDir, JobId, Json
from worker.commands.printing import print_json

if TYPE_CHECKING:
    from service.artifacts.schemas import ArtifactOut
    from service.attestations.statement import Statement
    from service.attestations.verification import TrustedKey, Verification
    from service.client import Client
    from service.contracts.report.whole import Manifest

_MOST_PEM_BYTES = 64 * 1024
_DATA_DIR = "QUANTMILL_DATA_DIR"
_MODEL_ENDINGS = (".onnx", ".onnx.data")

File = Annotated[
    Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="Artifact of a job, such as Q.onnx.")
]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(verify)
    command(app)(reproduce)


def verify(
    file: File,
    attestation: Annotated[
        Path | None,
        options.file_option("FILE", f"Attestation. Default: FILE{SUFFIX}."),
    ] = None,
    key: Annotated[
        list[Path] | None,
        options.file_option(
            "PUBLIC.pem",
            "Trust only these public keys; repeatable. Default: ~/.config/quantmill/trusted/*.pem, "
            "else those of your service on this host.",
        ),
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Trust the signing keys of this service.")] = None,
    data_dir: DataDir = None,
    no_signature: Annotated[
        bool, typer.Option("--no-signature", help="Skip the signature; anybody could have written the attestation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify a file against its attestation and print its provenance."""
    from service.attestations import verification
    from service.attestations.dsse import MOST_BYTES, parse_envelope
    from service.attestations.schemas import NotVerifiedError

    if sum((key is not None, server is not None, data_dir is not None, no_signature)) > 1:
        raise typer.BadParameter("--key, --server, --data-dir and --no-signature exclude each other.")
    path = attestation or attestation_path(file)
    if not path.is_file():
        raise typer.BadParameter(f"{path} does not exist. Give the attestation with --attestation.", param_hint="FILE")
    trusted = [] if no_signature else _trusted(key, server, data_dir)
    envelope = parse_envelope(_bounded(path, MOST_BYTES + 1))
    found = verification.verify(file, envelope, trusted, signature=not no_signature)
    if as_json:
        print_json(_document(file, found))
    else:
        _print(file, found)
    if found.faults:
        hint = "Do not trust this file; see docs/attestations.md."
        if found.faults[0].code in ("signature-not-checked", "key-unknown"):
            hint = "Give a trusted public key with --key, or the service with --server."
        raise NotVerifiedError(" ".join(fault.message for fault in found.faults), hint=hint)


def _trusted(given: list[Path] | None, server: str | None, data_dir: Path | None) -> list[TrustedKey]:
    if given is not None:
        return [key for path in given for key in _of_file(path)]
    if server is not None:
        return _of_server(server)
    if data_dir is not None:
        return _of_installation(data_dir)
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "quantmill" / "trusted"
    found = [key for path in sorted(folder.glob("*.pem")) for key in _of_file(path)]
    # never that of the working directory by itself: whoever made the files there would be trusted
    found += _of_installation(None) if os.environ.get(_DATA_DIR) else []
    return found or _of_own_service()


def _of_own_service() -> list[TrustedKey]:
    """The keys of the service that other commands would use; none where there is no such service."""
    from service.client import ServiceNotFoundError
    from service.client.connection import own_service

    try:
        address = own_service()
    except ServiceNotFoundError:
        return []
    return _of_server(address)


def _of_file(path: Path) -> list[TrustedKey]:
    from service.attestations.dsse import keys_of_pem
    from service.attestations.verification import TrustedKey

    text = _bounded(path, _MOST_PEM_BYTES + 1).decode(errors="replace")
    return [TrustedKey(key, str(path)) for key in keys_of_pem(text, str(path))]


def _of_server(server: str) -> list[TrustedKey]:
    from service.attestations.dsse import keys_of_pem
    from service.attestations.verification import TrustedKey

    with Service(server=server).connected() as client:
        rows = client.signing_keys()
    return [
        TrustedKey(key, server, row.retired_at) for row in rows for key in keys_of_pem(row.public_key, f"key {row.id}")
    ]


def _of_installation(data_dir: Path | None) -> list[TrustedKey]:
    from service.attestations import repository
    from service.attestations.signing import public_key
    from service.attestations.verification import TrustedKey
    from worker.commands.administration import installation

    settings = options.load_settings(data_dir=data_dir)
    if settings.embedded_database and not (settings.data_dir / "service.db").is_file():
        raise typer.BadParameter(f"{settings.data_dir} is not a data directory.", param_hint="--data-dir")
    with installation(data_dir) as (_, database), database.read() as session:
        rows = repository.signing_keys(session)
    return [TrustedKey(public_key(row), str(settings.data_dir), row.retired_at) for row in rows]


def _bounded(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(most_bytes)


def _document(file: Path, found: Verification) -> dict[str, Any]:
    signer = found.signed_by
    return {
        "verified": not found.faults,
        "file": str(file),
        "sha256": found.sha256,
        "external_data": [path.name for path in found.external],
        "signature": None
        if signer is None
        else {
            "key_id": signer.key.id,
            "trusted_by": signer.source,
            "retired_at": None if signer.retired_at is None else signer.retired_at.isoformat(),
        },
        "made": None if found.statement is None else _made(found.statement),
        "faults": [{"code": fault.code, "message": fault.message} for fault in found.faults],
    }


def _made(statement: Statement) -> dict[str, Any]:
    definition, run = statement.predicate.definition, statement.predicate.run
    invocation, internal = run.invocation, definition.internal
    moments = {"started_at": invocation.started_at, "finished_at": invocation.finished_at}
    return {
        "job": invocation.job_id,
        "attempt": invocation.attempt,
        **{name: None if at is None else at.isoformat() for name, at in moments.items()},
        "engine": dict(run.builder.version),
        "target": internal.target,
        "seed": internal.seed,
        "threads": internal.threads,
        "config_sha256": internal.config_sha256,
        "files": [{"name": subject.name, "sha256": subject.digest.sha256} for subject in statement.subjects],
        "from": [
            {
                "role": str(file.annotations.get("role", "")),
                "name": file.name,
                "uri": file.uri,
                "sha256": file.digest.sha256,
            }
            for file in definition.dependencies
        ],
    }


def _print(file: Path, found: Verification) -> None:
    from service.reports.figures import shown

    unchecked = {fault.code for fault in found.faults} == {"signature-not-checked"}
    word = "verified" if not found.faults else "NOT VERIFIED"
    lines = [("not checked", f"{file}: no trusted key") if unchecked else (word, str(file)), ("sha256", found.sha256)]
    lines += [("external data", path.name) for path in found.external]
    signer = found.signed_by
    if signer is not None:
        since = "" if signer.retired_at is None else f", retired {signer.retired_at:%Y-%m-%d %H:%M}"
        lines.append(("signature", f"of key {signer.key.id}{since}, trusted by {signer.source}"))
    elif found.statement is not None:
        lines.append(("signature", "not checked"))
    if found.statement is not None:
        lines += _made_lines(_made(found.statement))
    lines += [("fault", f"{fault.code}: {fault.message}") for fault in found.faults]
    for name, text in lines:
        typer.echo(f"{shown(name):<14} {shown(text)}")


def _made_lines(made: dict[str, Any]) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(made["engine"].items()) if name != "quantmill")
    lines = [
        ("job", f"{made['job']}, attempt {made['attempt']}, {made['started_at']} to {made['finished_at']}"),
        ("engine", f"quantmill {made['engine'].get('quantmill')} ({versions})"),
    ]
    lines += [(file["role"] or "from", f"{file['name']}  sha256 {file['sha256']}") for file in made["from"]]
    return [*lines, ("config", f"target {made['target']}, sha256 {made['config_sha256']}")]


def reproduce(
    job: JobId,
    service: Service,
    timeout: Timeout = None,
    *,
    printing: Printing,
) -> None:
    """Run a succeeded job again and compare the models byte by byte. Exit code 6 if they differ."""
    from service.attestations.schemas import NotReproducedError
    from worker.commands import remote
    from worker.commands.console import ProgressView

    with service.connected() as client, ProgressView(quiet=printing.quiet) as view:
        job = job_id(client, job)
        before = client.report(job).manifest
        installed = client.version()
        if installed != before.engine_version:
            note = f"The job ran on engine {before.engine_version}; the service has {installed} now."
            typer.echo(f"note: {note} The bytes may differ.", err=True)
        again = client.retry(job)
        remote.follow(client, again.id, view=view, timeout_seconds=timeout)
        after = client.report(again.id).manifest
        with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
            pairs = list(_pairs(client, job, again.id, Path(folder)))
    identical = bool(pairs) and all(pair["identical"] for pair in pairs)
    reasons = [] if identical else list(_reasons(before, after))
    if printing.json:
        document = {"identical": identical, "job": job, "again": again.id, "reasons": reasons}
        print_json({**document, "files": pairs})
    else:
        for pair in pairs:
            kind, first, second, same = pair.values()
            told = f"sha256 {first}" if same else f"{first} / {second}"
            typer.echo(f"{'identical' if same else 'DIFFERENT':<10} {kind}  {told}")
        typer.echo(f"{'again':<10} {again.id}")
    if not identical:
        raise NotReproducedError(
            f"The models of {again.id} and {job} differ: {' '.join(reasons)}",
            hint="The same bytes require the same engine, libraries and kind of processor; see docs/attestations.md.",
        )


def _pairs(client: Client, first: str, again: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Every model file of either run, downloaded and compared byte by byte; None: that run did not give it."""
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
        digests = [None if file is None else file.sha256 for file in (one, other)]
        yield {"kind": kind, "first_sha256": digests[0], "again_sha256": digests[1], "identical": same}


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
        yield "The gate's fallback chose the model by measured latency, which varies between runs."
    elif not changed:
        yield "Engine, libraries and threads are the same; the processor or GPU may differ."
