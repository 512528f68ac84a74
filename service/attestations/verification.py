"""Verifies a file against its attestation without a service: signature, digests, and the model's own metadata.

Everything is read as bytes: nothing of file or attestation is executed, unpacked or followed to another place.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from service.attestations.dsse import PAYLOAD_TYPE, Envelope, PublicKey
from service.attestations.statement import Statement, parse_statement
from service.client.uploads import external_files
from service.contracts.errors import ExternalDataError
from service.contracts.provenance import PREFIX
from service.protobuf import DamagedError, fields

FaultCode = Literal[
    "signature-not-checked",
    "key-unknown",
    "key-retired",
    "signature-invalid",
    "payload-type",
    "file-changed",
    "external-data-missing",
    "external-data-changed",
    "manifest-differs",
]
# Fields of ModelProto and StringStringEntryProto (onnx.proto3).
_METADATA, _ENTRY_KEY, _ENTRY_VALUE = 14, 1, 2
# Of ModelProto, and of what one entry may hold: a model of ours has a handful of short ones.
_MOST_FIELDS = 100_000
_MOST_ENTRY_BYTES = 64 * 1024
# Entries that a quantized model has, and where the statement says the same; the engine's version stands elsewhere.
_SAID_TWICE = ("source_sha256", "config_sha256", "manifest_sha256", "target")


@dataclass(frozen=True)
class TrustedKey:
    """A key whose signatures are believed."""

    key: PublicKey  # its public half
    source: str  # where it is from
    retired_at: datetime | None = None  # UTC, since when it signs no more, where that is known


@dataclass(frozen=True)
class Fault:
    """Why a file is not verified."""

    code: FaultCode
    message: str


@dataclass(frozen=True)
class Verification:
    """What was found."""

    sha256: str  # of the file
    signed_by: TrustedKey | None = None  # whose signature it is; None: nobody's that is trusted, or it was not checked
    statement: Statement | None = None  # what is said; None where nobody who is trusted has said it
    external: tuple[Path, ...] = ()  # files of external data, which are covered as well
    faults: tuple[Fault, ...] = ()  # empty: verified


def verify(file: Path, envelope: Envelope, trusted: Sequence[TrustedKey], *, signature: bool = True) -> Verification:
    """Check a file against an attestation.

    Args:
        file: a model, or whatever else the job has made; external data lies beside it.
        envelope: the attestation.
        trusted: keys; without one nothing is verified.
        signature: False: the signature is not looked at, on the caller's own responsibility.

    Raises:
        AttestationUnreadableError: the attestation is none.
        OSError: a file cannot be read.
    """
    sha256 = _sha256(file)
    signed_by = None
    if signature:
        signed_by, fault = _signer(envelope, trusted)
        if signed_by is None:
            return Verification(sha256, faults=() if fault is None else (fault,))
    if envelope.payload_type != PAYLOAD_TYPE:
        fault = Fault("payload-type", f"The attestation contains no statement: its type is {envelope.payload_type!r}.")
        return Verification(sha256, signed_by, faults=(fault,))
    statement = parse_statement(envelope.body)
    faults = [] if signed_by is None else list(_retired(signed_by, statement))
    digests = [subject.digest.sha256 for subject in statement.subjects]
    external: list[Path] = []
    if sha256 not in digests:
        names = ", ".join(subject.name for subject in statement.subjects[:5])
        message = f"{file.name} has sha256 {sha256}; the attestation lists no file with this digest ({names})."
        faults.append(Fault("file-changed", message))
    else:
        try:
            external = external_files(file)
        except ExternalDataError as error:
            faults.append(Fault("external-data-missing", error.detail))
        faults += _external_faults(external, set(digests))
        if sha256 == digests[0]:
            faults += _manifest_faults(file, statement)
    return Verification(sha256, signed_by, statement, tuple(external), tuple(faults))


def _signer(envelope: Envelope, trusted: Sequence[TrustedKey]) -> tuple[TrustedKey | None, Fault | None]:
    if not trusted:
        return None, Fault("signature-not-checked", "The signature was not verified: there is no trusted key.")
    found = envelope.signed_by([known.key for known in trusted])
    if found is not None:
        return next(known for known in trusted if known.key == found), None
    hints = {signature.keyid for signature in envelope.signatures}
    known = {trust.key.id for trust in trusted}
    if hints & known:
        message = f"The signature of key {min(hints & known)} is not valid: the signature or the content was changed."
        return None, Fault("signature-invalid", message)
    told = ", ".join(sorted(hints))
    return None, Fault("key-unknown", f"The attestation was not signed by a trusted key; it names {told or 'none'}.")


def _retired(signed_by: TrustedKey, statement: Statement) -> Iterator[Fault]:
    """A key signs nothing that was done after its end."""
    done_at, retired_at = statement.predicate.run.invocation.finished_at, signed_by.retired_at
    if done_at is not None and retired_at is not None and done_at > retired_at:
        message = f"Key {signed_by.key.id} was retired at {retired_at.isoformat()}, before the job ended."
        yield Fault("key-retired", message)


def _external_faults(external: list[Path], digests: set[str]) -> Iterator[Fault]:
    for path in external:
        found = _sha256(path)
        if found not in digests:
            message = f"{path.name} has sha256 {found}; the attestation lists no file with this digest."
            yield Fault("external-data-changed", message)


def _manifest_faults(file: Path, statement: Statement) -> Iterator[Fault]:
    """What the model says of its making otherwise than the statement. A model that says nothing is passed over."""
    said = model_metadata(file)
    predicate = statement.predicate
    told = {name: getattr(predicate.definition.internal, name) for name in _SAID_TWICE}
    told["engine_version"] = predicate.run.builder.version.get("quantmill")
    for name, value in told.items():
        own = said.get(PREFIX + name)
        if own is not None and value is not None and own != value:
            yield Fault("manifest-differs", f"The model's {name} is {own}, but the attestation states {value}.")


def model_metadata(file: Path) -> dict[str, str]:
    """The entries of an ONNX file's ``metadata_props``; none of a file of another kind. Nothing else of it is read."""
    if file.stat().st_size == 0:
        return {}
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return dict(_entries(data))
        except DamagedError:
            return {}


def _entries(data: mmap.mmap) -> Iterator[tuple[str, str]]:
    for count, (number, size, at) in enumerate(fields(data, 0, len(data))):
        if count > _MOST_FIELDS:
            raise DamagedError("there are more fields than any model has")
        if number != _METADATA or at is None or size > _MOST_ENTRY_BYTES:
            continue
        texts = {inner: data[place : place + length] for inner, length, place in fields(data, at, at + size) if place}
        key, value = (texts.get(part, b"").decode(errors="replace") for part in (_ENTRY_KEY, _ENTRY_VALUE))
        yield key, value


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
