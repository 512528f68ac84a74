"""Artifacts: the files that a job has made."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

import httpx

from service.artifacts.schemas import ArtifactOut
from service.client.connection import BLOCK_BYTES, Connection
from service.transport import ApiError, DownloadCorruptError, Patience, raise_for_problem


class ArtifactCalls(Connection):
    """Calls of ``/v1/artifacts``."""

    def artifacts(self, job_id: str) -> list[ArtifactOut]:
        """Files that the job produced."""
        found = self._json("GET", f"/v1/jobs/{job_id}/artifacts")["items"]
        return [ArtifactOut.model_validate(item) for item in found]

    def download_artifact(self, artifact_id: str, path: Path) -> ArtifactOut:
        """Write an artifact to ``path``, which appears only once all bytes are there and their sha256 is right.

        Raises:
            DownloadCorruptError: the bytes are not those of the artifact.
        """
        artifact = ArtifactOut.model_validate(self._json("GET", f"/v1/artifacts/{artifact_id}"))
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            with part.open("wb") as stream:
                digest = self._receive(artifact, stream)
            if digest != artifact.sha256:
                raise DownloadCorruptError(
                    f"The download has sha256 {digest}, the artifact {artifact.sha256}.", hint="Download it again."
                )
            part.replace(path)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()
        return artifact

    def _receive(self, artifact: ArtifactOut, stream: IO[bytes]) -> str:
        patience = Patience(self._transport)
        digest, received = hashlib.sha256(), 0
        while received < artifact.size_bytes:
            headers = {"Range": f"bytes={received}-", "Accept-Encoding": "identity"} if received else {}
            try:
                with self._transport.stream(artifact.links.content, headers=headers, silence_seconds=60.0) as response:
                    raise_for_problem(response)
                    if received and response.status_code != httpx.codes.PARTIAL_CONTENT:
                        raise DownloadCorruptError("The service did not go on where the download broke off.")
                    for block in response.iter_bytes(BLOCK_BYTES):
                        stream.write(block)
                        digest.update(block)
                        received += len(block)
                        patience.renew()
            except (httpx.TransportError, ApiError) as error:
                patience.endure(error)
        return digest.hexdigest()
