"""A client of the service: typed, synchronous, and stubborn where the network is not to be trusted."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import httpx

from service.artifacts.schemas import ArtifactOut
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import InvalidRequestError
from service.contracts.inspection import Inspection
from service.contracts.report import Report
from service.datasets.schemas import DatasetOut
from service.inspections.schemas import InspectionOut
from service.jobs.schemas import TERMINAL, EventOut, JobOut
from service.models.schemas import ModelOut, is_main
from service.pagination import Page
from service.storage import file_sha256
from service.transport import (
    ApiError,
    DownloadCorruptError,
    JobNotSucceededError,
    Patience,
    ServerUnreachableError,
    Transport,
    WaitTimeoutError,
    raise_for_problem,
)

__all__ = ["ApiError", "DownloadCorruptError", "QuantmillClient", "ServerUnreachableError", "Upload"]

BLOCK_BYTES = 1024 * 1024
LONG_POLL_SECONDS = 25.0
# The service pings every 15 s: a stream that is silent for so long is dead.
STREAM_SILENCE_SECONDS = 45.0
_FINISH_BYTES_PER_SECOND = 20e6
UploadProgress = Callable[[int, int], None]
_Noun = TypeVar("_Noun", ModelOut, DatasetOut)
_Seen = TypeVar("_Seen")


@dataclass(frozen=True)
class Upload:
    """A complete upload."""

    id: str
    sha256: str
    size_bytes: int


class QuantmillClient:
    """One service, by its address.

    Lost connections and passing trouble (503 and the like) are endured for ``patience_seconds``. A job is submitted
    under an idempotency key, so that it never runs twice; a retried upload or noun may leave an unused one behind.

    Args:
        base_url: such as ``http://127.0.0.1:8000``.
        key: the service's key, where it has one.
        timeout_seconds: for a single answer.
        patience_seconds: how long trouble may go on before it is reported.

    Raises (all methods):
        ApiError: the service refused; carries its problem.
        ServerUnreachableError: the service does not answer.
    """

    def __init__(
        self, base_url: str, key: str | None = None, *, timeout_seconds: float = 30.0, patience_seconds: float = 30.0
    ) -> None:
        self._transport = Transport(base_url, key, timeout_seconds=timeout_seconds, patience_seconds=patience_seconds)

    def __enter__(self) -> QuantmillClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def upload_file(self, path: Path, *, kind: str | None = None, progress: UploadProgress | None = None) -> Upload:
        """Send a file; after a lost connection it goes on where the service's bytes end.

        Args:
            path: the file; must not change meanwhile.
            kind: "model" or "dataset", for people.
            progress: called with the bytes sent so far and all bytes.
        """
        size_bytes, sha256 = path.stat().st_size, file_sha256(path)
        body = {"filename": path.name, "size_bytes": size_bytes, "sha256": sha256, "kind": kind}
        upload_id: str = self._json("POST", "/v1/uploads", json=body)["id"]
        self._send_bytes(path, f"/v1/uploads/{upload_id}", size_bytes, progress or _no_progress)
        return Upload(upload_id, sha256, size_bytes)

    def create_model(self, *paths: Path, name: str | None = None, progress: UploadProgress | None = None) -> ModelOut:
        """Upload a model: its .onnx file with the files of its external data, or one .pt2 file where they are allowed.

        The model is being validated when this returns: see ``wait_ready``.

        Raises:
            InvalidRequestError: not exactly one of the files ends in .onnx.
        """
        form = "pt2" if [path.suffix for path in paths] == [".pt2"] else "onnx"
        main = [path for path in paths if form == "pt2" or is_main(path.name)]
        if len(main) != 1:
            raise InvalidRequestError(
                f"Exactly one file must end in .onnx, found {len(main)}.", hint="All others are its external data."
            )
        files = []
        for path in paths:
            upload = self.upload_file(path, kind="model", progress=progress)
            files.append({"upload_id": upload.id, "path": path.name})
        body = {"name": name or main[0].stem, "files": files, "format": form}
        return ModelOut.model_validate(self._json("POST", "/v1/models", json=body))

    def create_model_version(
        self, skeleton_id: str, state_path: Path, *, name: str | None = None, progress: UploadProgress | None = None
    ) -> ModelOut:
        """Upload new weights for the graph of a ready model; the model of both is being validated when this returns.

        Args:
            skeleton_id: the model.
            state_path: what ``safetensors.torch.save_file(module.state_dict(), path)`` wrote.
            name: of the new model; default: that of the file.
            progress: as for ``upload_file``.
        """
        upload = self.upload_file(state_path, kind="model", progress=progress)
        body = {
            "name": name or state_path.stem,
            "format": "safetensors",
            "skeleton_model_id": skeleton_id,
            "files": [{"upload_id": upload.id, "path": f"{state_path.stem}.safetensors"}],
        }
        return ModelOut.model_validate(self._json("POST", "/v1/models", json=body))

    def create_dataset(
        self,
        path: Path,
        preprocessing: PreprocessingSpec | None = None,
        *,
        name: str | None = None,
        progress: UploadProgress | None = None,
    ) -> DatasetOut:
        """Upload a dataset: .npz or .safetensors, or .tar, .tar.gz or .zip of pictures or sounds.

        It is being validated when this returns: see ``wait_ready``.
        """
        upload = self.upload_file(path, kind="dataset", progress=progress)
        body: dict[str, Any] = {"name": name or path.stem, "upload_id": upload.id}
        if preprocessing is not None:
            body["preprocessing"] = preprocessing.model_dump(mode="json")
        return DatasetOut.model_validate(self._json("POST", "/v1/datasets", json=body))

    def wait_ready(self, noun: _Noun, *, timeout_seconds: float | None = None) -> _Noun:
        """Wait until a model or dataset is validated; returns it as it is then.

        Raises:
            ApiError: it was rejected; carries the reason.
            WaitTimeoutError: it takes longer than that.
        """
        path, kind = noun.links.self, type(noun)

        def look(wait_seconds: float) -> _Noun:
            return kind.model_validate(self._json("GET", path, wait_seconds=wait_seconds))

        noun = self._wait(look, lambda seen: seen.status != "validating", timeout_seconds, path)
        if noun.status == "rejected":
            raise ApiError(noun.problems[0])
        return noun

    def thumbnails(self, dataset_id: str) -> bytes:
        """A sheet of small pictures of a ready dataset of pictures, PNG."""
        path = f"/v1/datasets/{dataset_id}/thumbnails"
        return self._transport.patiently(lambda: self._transport.send("GET", path)).content

    def create_job(
        self,
        *,
        model_id: str,
        calibration_dataset_id: str | None = None,
        evaluation_dataset_id: str | None = None,
        config: QuantizationConfig | Mapping[str, Any] | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        ranges_from: str | None = None,
    ) -> JobOut:
        """Submit a quantization.

        Args:
            model_id: a ready model.
            calibration_dataset_id: a ready dataset that fits the model; None: random data, if the config has it.
            evaluation_dataset_id: another, to measure accuracy on.
            config: the recipe, resolved or as sparse as can be.
            name: for people.
            labels: to find the job by.
            idempotency_key: default: a fresh one, so that only this call's own retries are the same request.
            ranges_from: a succeeded job of the same graph, whose calibrated ranges are taken over.
        """
        body = {
            "model_id": model_id,
            "calibration_dataset_id": calibration_dataset_id,
            "evaluation_dataset_id": evaluation_dataset_id,
            "config": _plain(config),
            "name": name,
            "labels": dict(labels or {}),
            "ranges_from": ranges_from,
        }
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return JobOut.model_validate(self._json("POST", "/v1/jobs", json=body, headers=headers))

    def inspect(
        self,
        model_id: str,
        *,
        target: str | None = None,
        config: QuantizationConfig | Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> Inspection:
        """What a target would make of a ready model, node by node; ``target`` takes the place of the config's.

        Raises:
            ApiError: the model cannot be inspected; carries the reason.
            WaitTimeoutError: it takes longer than that.
        """
        params = {} if target is None else {"target": target}
        made = InspectionOut.model_validate(
            self._json("POST", f"/v1/models/{model_id}/inspect", params=params, json={"config": _plain(config)})
        )
        path = made.links.self

        def look(wait_seconds: float) -> InspectionOut:
            return InspectionOut.model_validate(self._json("GET", path, wait_seconds=wait_seconds))

        found = self._wait(look, lambda seen: seen.status != "running", timeout_seconds, path)
        if found.problem is not None:
            raise ApiError(found.problem)
        assert found.result is not None  # noqa: S101 - it has ended
        return found.result

    def jobs(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[JobOut]:
        """One page of the jobs, newest first.

        Args:
            state: only those in this state, as it is shown.
            limit: jobs per page, at most 200.
            cursor: ``next_cursor`` of the page before.
        """
        given = {"state": state, "limit": limit, "cursor": cursor}
        params = {name: value for name, value in given.items() if value is not None}
        return Page[JobOut].model_validate(self._json("GET", "/v1/jobs", params=params))

    def job(self, job_id: str) -> JobOut:
        """The job as it is now."""
        return JobOut.model_validate(self._json("GET", f"/v1/jobs/{job_id}"))

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventOut]:
        """The job's events, each once and in order, as they happen; ends when the job has ended.

        A stream that breaks off is taken up again after the last event. Of figures (type metric) those of the last
        attempt hold: ``latest_metrics`` of ``service.jobs.metric_events`` picks them.
        """
        patience = Patience(self._transport)
        while True:
            try:
                for name, data in self._stream_events(job_id, after):
                    patience.renew()
                    if name == "end":
                        return
                    event = EventOut.model_validate_json(data)
                    after = event.seq
                    yield event
            except (httpx.TransportError, ApiError) as error:
                patience.endure(error)

    def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> JobOut:
        """Wait until the job has ended, however it did.

        Raises:
            WaitTimeoutError: it takes longer than that.
        """
        path = f"/v1/jobs/{job_id}"

        def look(wait_seconds: float) -> JobOut:
            return JobOut.model_validate(self._json("GET", path, wait_seconds=wait_seconds))

        return self._wait(look, lambda seen: seen.state in TERMINAL, timeout_seconds, path)

    def wait_succeeded(self, job_id: str, *, timeout_seconds: float | None = None) -> JobOut:
        """Wait until the job has succeeded.

        Raises:
            ApiError: it failed; carries its error.
            JobNotSucceededError: it was canceled.
            WaitTimeoutError: it takes longer than that.
        """
        job = self.wait(job_id, timeout_seconds=timeout_seconds)
        if job.error is not None:
            raise ApiError(job.error)
        if job.state != "succeeded":
            raise JobNotSucceededError(f"The job {job_id} was canceled.", hint="Submit it again.")
        return job

    def report(self, job_id: str) -> Report:
        """The report of a succeeded job."""
        return Report.model_validate(self._json("GET", f"/v1/jobs/{job_id}/report"))

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

    def cancel(self, job_id: str) -> JobOut:
        """Cancel the job; one that has ended stays as it is."""
        return JobOut.model_validate(self._json("POST", f"/v1/jobs/{job_id}/cancel"))

    def _json(self, method: str, path: str, *, wait_seconds: float = 0.0, **request: Any) -> Any:
        if wait_seconds:
            request["params"] = {"wait": f"{wait_seconds:g}"}
        send = self._transport.send
        return self._transport.patiently(lambda: send(method, path, wait_seconds=wait_seconds, **request)).json()

    def _send_bytes(self, path: Path, url: str, size_bytes: int, progress: UploadProgress) -> None:
        patience = Patience(self._transport)
        # once all bytes are sent, the service makes them durable and may have to read them again
        finish_seconds = size_bytes / _FINISH_BYTES_PER_SECOND
        offset = 0
        progress(offset, size_bytes)
        while offset < size_bytes:
            headers = {"Upload-Offset": str(offset), "Content-Length": str(size_bytes - offset)}
            try:
                with path.open("rb") as stream:
                    blocks = _blocks(stream, offset, size_bytes, progress)
                    answer = self._transport.send(
                        "PATCH", url, content=blocks, headers=headers, wait_seconds=finish_seconds
                    )
                offset = int(answer.headers["Upload-Offset"])
            except (httpx.TransportError, ApiError) as error:
                if not (isinstance(error, ApiError) and error.sent.code == "upload-offset-mismatch"):
                    patience.endure(error)
                reached = self._transport.patiently(lambda: self._transport.send("HEAD", url))
                if int(reached.headers["Upload-Offset"]) > offset:
                    patience.renew()
                offset = int(reached.headers["Upload-Offset"])

    def _stream_events(self, job_id: str, after: int) -> Iterator[tuple[str, str]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        url = f"/v1/jobs/{job_id}/events"
        with self._transport.stream(url, headers=headers, silence_seconds=STREAM_SILENCE_SECONDS) as response:
            raise_for_problem(response)
            name, data = "message", ""
            for line in response.iter_lines():
                key, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if key == "event":
                    name = value
                elif key == "data":
                    data = value
                elif not line and data:
                    yield name, data
                    name, data = "message", ""
        raise httpx.RemoteProtocolError("the event stream ended before the job")

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

    def _wait(
        self, look: Callable[[float], _Seen], done: Callable[[_Seen], bool], timeout_seconds: float | None, what: str
    ) -> _Seen:
        ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = LONG_POLL_SECONDS if ends is None else max(0.0, ends - time.monotonic())
            seen = look(min(LONG_POLL_SECONDS, left))
            if done(seen):
                return seen
            if ends is not None and time.monotonic() >= ends:
                raise WaitTimeoutError(
                    f"{what} has not ended within {timeout_seconds:g} s.", hint="It goes on in the service: ask again."
                )


def _blocks(stream: IO[bytes], offset: int, size_bytes: int, progress: UploadProgress) -> Iterator[bytes]:
    stream.seek(offset)
    while offset < size_bytes:
        block = stream.read(min(BLOCK_BYTES, size_bytes - offset))
        if not block:
            return  # the file has shrunk: the service will say so
        offset += len(block)
        yield block
        progress(offset, size_bytes)


def _plain(config: QuantizationConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    return config.model_dump(mode="json") if isinstance(config, QuantizationConfig) else dict(config or {})


def _no_progress(sent_bytes: int, size_bytes: int) -> None:
    """Tell nobody."""
