"""What jobs give: artifacts, attestations, comparisons, and results sent to other places."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx

from service.artifacts.schemas import ArtifactList, ArtifactOut
from service.attestations.schemas import SigningKeyList, SigningKeyOut
from service.client.connection import Connection, Resource, id_of
from service.client.driving import Call
from service.client.errors import ApiError, DownloadCorruptError, raise_for_problem
from service.client.steps import Steps, next_block, open_stream, work
from service.comparison.schemas import Comparison
from service.contracts.command_errors import FileAccessError
from service.contracts.errors import InvalidRequestError
from service.contracts.runner import DATA_KIND, FILE_PATTERN
from service.hand_overs.schemas import HandOverList, HandOverOut

_SILENCE_SECONDS = 60.0


class ResultCalls(Connection):
    """Calls of what jobs give: ``/v1/artifacts``, attestations, comparisons and hand-overs."""

    @Call
    def artifacts(self, job: Resource | str) -> Steps[list[ArtifactOut]]:
        """Files that the job produced."""
        return (yield from self._artifacts(job))

    @Call
    def download(self, job: Resource | str, path: Path | str, *, kind: str = "model") -> Steps[ArtifactOut]:
        """Write what a succeeded job produced to ``path``, which appears whole or not at all.

        A model above 2 GB keeps its weights in a second file, which is written beside it under the name that the model
        calls it by. A file of that name with other content, such as another model's, is left as it is.

        Args:
            job: the job, or its id.
            path: of the file.
            kind: ``model``, ``report``, or the kind of a further file of the recipe; ``artifacts`` lists them.

        Raises:
            InvalidRequestError: the job has no such artifact; names those that it has.
            DownloadCorruptError: the bytes are not those of the artifact.
            FileAccessError: other external data lies where the model's has to; nothing was written.
        """
        found = {item.kind: item for item in (yield from self._artifacts(job))}
        if kind not in found:
            raise InvalidRequestError(
                f"The job {id_of(job)} has no artifact {kind!r}.",
                hint=f"It has: {', '.join(found)}." if found else "It has none: wait until it has succeeded.",
            )
        if kind == "model" and DATA_KIND in found:
            data, place = found[DATA_KIND], _beside(Path(path), found[DATA_KIND].filename)
            if not (yield from work(partial(_is_there, data, place))):
                yield from self._download(data, place)
        return (yield from self._download(found[kind], Path(path)))

    @Call
    def download_artifact(self, artifact: Resource | str, path: Path | str) -> Steps[ArtifactOut]:
        """Write an artifact to ``path``, which appears only once all bytes are there and their sha256 is right.

        Raises:
            DownloadCorruptError: the bytes are not those of the artifact.
        """
        found = ArtifactOut.model_validate((yield from self._json("GET", f"/v1/artifacts/{id_of(artifact)}")))
        return (yield from self._download(found, Path(path)))

    def _artifacts(self, job: Resource | str) -> Steps[list[ArtifactOut]]:
        return (yield from self._get(ArtifactList, f"/v1/jobs/{id_of(job)}/artifacts")).items

    def _download(self, artifact: ArtifactOut, path: Path) -> Steps[ArtifactOut]:
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            with part.open("wb") as stream:
                digest = yield from self._receive(artifact, stream)
            if digest != artifact.sha256:
                raise DownloadCorruptError(
                    f"The download has sha256 {digest}, the artifact {artifact.sha256}.", hint="Download it again."
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return artifact

    def _receive(self, artifact: ArtifactOut, stream: IO[bytes]) -> Steps[str]:
        """Write all bytes, going on where the connection broke off; gives their sha256."""
        retries = self._retries()
        digest, received = hashlib.sha256(), 0

        def keep(block: bytes) -> None:
            stream.write(block)
            digest.update(block)

        while received < artifact.size_bytes:
            headers = {"Range": f"bytes={received}-", "Accept-Encoding": "identity"} if received else {}
            try:
                opened = yield from open_stream(
                    artifact.links.content, headers, silence_seconds=_SILENCE_SECONDS, lines=False
                )
                raise_for_problem(opened.response)
                if received and opened.response.status_code != httpx.codes.PARTIAL_CONTENT:
                    raise DownloadCorruptError("The service did not go on where the download broke off.")
                while (block := (yield from next_block(opened))) is not None:
                    received += len(block)
                    yield from work(partial(keep, block))
                    retries.renew()
            except (httpx.TransportError, ApiError) as error:
                yield from retries.endure(error)
        return digest.hexdigest()

    @Call
    def attestation(self, job: Resource | str) -> Steps[bytes]:
        """The attestation of a succeeded job: a DSSE envelope as one line of JSON, to be kept beside its model."""
        return (yield from self._request("GET", f"/v1/jobs/{id_of(job)}/attestation")).content

    @Call
    def signing_keys(self) -> Steps[list[SigningKeyOut]]:
        """The public keys by which the service signs, or has signed, the newest first."""
        return (yield from self._get(SigningKeyList, "/v1/keys/signing")).items

    @Call
    def compare(self, jobs: Sequence[Resource | str], *, flips: int = 50) -> Steps[Comparison]:
        """Compare jobs that have succeeded; the first is what the others are held against.

        Args:
            jobs: 2 to 20 jobs, or their ids.
            flips: number of prediction flips to list per pair.

        Raises:
            ConflictError: one has not ended.
        """
        params = {"job": [id_of(job) for job in jobs], "flips": flips}
        return (yield from self._get(Comparison, "/v1/compare", params=params))

    @Call
    def compare_csv(self, jobs: Sequence[Resource | str]) -> Steps[str]:
        """The same as a table of CSV, one row per job."""
        params = {"job": [id_of(job) for job in jobs]}
        return (yield from self._request("GET", "/v1/compare.csv", params=params)).text

    @Call
    def hand_over(
        self, job: Resource | str, targets: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> Steps[list[HandOverOut]]:
        """Have results of a job sent to places of yours, once it has succeeded, or now if it has; gives the new ones.

        Args:
            job: the job, or its id.
            targets: as POST takes them: ``{"kind": "put", "artifact": "model", "url": PRESIGNED}``, or
                ``{"kind": "post", "url": URL}``, each with ``headers`` and ``when``.
            idempotency_key: as for ``submit``.

        Raises:
            ConflictError: the job has failed or was canceled, or has as many as it may.
        """
        body = {"targets": [dict(target) for target in targets]}
        made = yield from self._create(f"/v1/jobs/{id_of(job)}/hand-over", body, idempotency_key)
        return HandOverList.model_validate(made).items

    @Call
    def hand_overs(self, job: Resource | str) -> Steps[list[HandOverOut]]:
        """Hand-overs of a job, in the order in which they were asked for; without URLs, which nobody is shown."""
        return (yield from self._get(HandOverList, f"/v1/jobs/{id_of(job)}/hand-over")).items


def _is_there(data: ArtifactOut, place: Path) -> bool:
    """Whether the external data lies there already.

    Raises:
        FileAccessError: something else does. It may be that of another model, which calls it by the same name.
    """
    if not place.exists():
        return False
    if place.is_file() and place.stat().st_size == data.size_bytes:
        with place.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == data.sha256:
                return True
    raise FileAccessError(
        f"{place} is there already, and is not the external data of this model.",
        hint=f"The model calls its data {data.filename!r}: download it into another folder, or remove that file first.",
    )


def _beside(path: Path, name: str) -> Path:
    """The place of a model's external data.

    Raises:
        DownloadCorruptError: its name is not that of a file, or that of the model.
    """
    if not re.fullmatch(FILE_PATTERN, name) or name == path.name:
        raise DownloadCorruptError(
            f"The external data file is named {name!r}, which cannot be stored next to {path.name!r}.",
            hint="Download the model under another name.",
        )
    return path.with_name(name)
