"""An API server for tests: uploads over HTTP, and nouns and jobs moved on by the transitions, as a worker would."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from service.contracts.config import QuantizationConfig
from service.contracts.dataset import ArraySummary, DatasetSummary, LabelSummary
from service.contracts.errors import NonFiniteDataError, NotOnnxError, QuantmillError
from service.contracts.model import ModelSummary, TensorInfo
from service.contracts.report import Fallback, FallbackKind, Report
from service.db import db_now
from service.deps import AppState
from service.jobs import transitions
from service.jobs.outcome import NewArtifact, Outcome, QuantizeOutcome
from service.tables import Job

WORKER = "worker-1"
LEASE_SECONDS = 60.0


def model_summary(**changes: Any) -> ModelSummary:
    """A classifier: input ``x`` float32 [batch, 3, 8, 8], output ``y`` [batch, 5]."""
    facts: dict[str, Any] = {
        "ir_version": 8,
        "opset": {"": 17},
        "producer": "test",
        "inputs": (TensorInfo(name="x", dtype="float32", shape=("batch", 3, 8, 8)),),
        "outputs": (TensorInfo(name="y", dtype="float32", shape=("batch", 5)),),
        "node_count": 5,
        "op_counts": {"Conv": 1, "Relu": 1, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1},
        "parameter_count": 533,
        "size_bytes": 2500,
        "sha256": "0" * 64,
    }
    return ModelSummary.model_validate({**facts, **changes})


def dataset_summary(*, labels: LabelSummary | None = None, **arrays: ArraySummary) -> DatasetSummary:
    """Data that fits ``model_summary``, or the given arrays."""
    found = arrays or {"x": ArraySummary(dtype="float32", shape=(32, 3, 8, 8))}
    samples = next(iter(found.values())).shape[0]
    return DatasetSummary(format="npz", samples=samples, arrays=found, labels=labels, size_bytes=1000, sha256="1" * 64)


def make_report(verdict: str = "none") -> Report:
    """A small but whole report."""
    metric = {"name": "top1", "kind": "top1", "unit": "%", "better": "higher"}
    fidelity = {"sqnr_db": 30.0, "cosine": 0.999, "top1_agreement": 99.0, "samples": 32, "source": "calibration"}
    digests = {"model_sha256": "0" * 64, "calibration_sha256": "1" * 64, "output_sha256": "2" * 64}
    config = QuantizationConfig().model_dump(mode="json")
    manifest = {"engine_version": "0", **digests, "evaluation_sha256": None, "config": config, "seed": 0}
    return Report.model_validate(
        {
            "verdict": verdict,
            "summary": "Quantized.",
            "float": {"metrics": {"top1": 90.0}, "size_bytes": 4000, "latency_ms": 1.0},
            "quantized": {"metrics": {"top1": 89.5}, "size_bytes": 1000, "latency_ms": 0.5},
            "metrics": [{**metric, "float": 90.0, "quantized": 89.5, "drop": 0.5}],
            "fidelity": {**fidelity, "outputs": []},
            "layers": [{"name": "conv", "op": "Conv", "sqnr_db": 31.5}],
            "preparation": [],
            "stages": [{"name": "load", "seconds": 0.1, "peak_rss_bytes": 1}],
            "manifest": {**manifest, "versions": {}, "threads": 1},
        }
    )


def fallen_back(report: Report, kind: FallbackKind) -> Report:
    """The report of a job that returns this model, as the planned one was too slow."""
    kinds: tuple[FallbackKind, ...] = ("planned", "reduced", "float")
    candidates = [
        {"kind": one, "nodes_taken_off": 0, "size_bytes": 1, "latency_ratio": 1.0, "holds": True, "chosen": one == kind}
        for one in kinds
    ]
    told = {"because": "it is slow", "reason": "it is the best", "candidates": candidates, "seconds": 1.0}
    return report.model_copy(update={"fallback": Fallback.model_validate(told)})


def npz_bytes(**arrays: np.ndarray) -> bytes:
    """An .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **(arrays or {"x": np.zeros((4, 3, 8, 8), np.float32)}))
    return buffer.getvalue()


class Front:
    """HTTP on one side, the worker's transitions on the other."""

    def __init__(self, client: TestClient, app: AppState) -> None:
        self.http = client
        self.app = app

    def upload(self, data: bytes = b"model bytes", filename: str = "model.onnx") -> str:
        """A complete upload; returns its id."""
        upload_id = self._made("uploads", {"filename": filename, "size_bytes": len(data)})
        taken(self.http.put(f"/v1/uploads/{upload_id}/content", content=data))
        return upload_id

    def new_model(self) -> str:
        """A model in validation."""
        return self._made("models", {"name": "tiny", "files": [{"upload_id": self.upload(), "path": "model.onnx"}]})

    def new_dataset(self, **body: Any) -> str:
        """A dataset in validation."""
        return self._made("datasets", {"name": "data", "upload_id": self.upload(npz_bytes(), "data.npz"), **body})

    def _made(self, nouns: str, body: dict[str, Any], status: int = 201) -> str:
        return str(taken(self.http.post(f"/v1/{nouns}", json=body), status)["id"])

    def ready_model(self, summary: ModelSummary | None = None) -> str:
        """A model that validation accepted."""
        model_id = self.new_model()
        self.finish(self.inspect_job(model_id=model_id), summary or model_summary())
        return model_id

    def rejected_model(self) -> str:
        """A model that validation refused."""
        model_id = self.new_model()
        self.fail(self.inspect_job(model_id=model_id), NotOnnxError("The file is no ONNX model.", hint="Export again."))
        return model_id

    def ready_dataset(self, summary: DatasetSummary | None = None) -> str:
        """A dataset that validation accepted."""
        dataset_id = self.new_dataset()
        self.finish(self.inspect_job(dataset_id=dataset_id), summary or dataset_summary())
        return dataset_id

    def rejected_dataset(self) -> str:
        """A dataset that validation refused."""
        dataset_id = self.new_dataset()
        self.fail(self.inspect_job(dataset_id=dataset_id), NonFiniteDataError("Array 'x' holds NaN."))
        return dataset_id

    def inspect_job(self, **filters: str) -> str:
        """The id of the job that validates this noun."""
        with self.app.database.read() as session:
            job_id = session.scalar(select(Job.id).filter_by(**filters).where(Job.kind != "quantize"))
        assert job_id is not None
        return job_id

    def job_body(self, **changes: Any) -> dict[str, Any]:
        """A request for a job over a ready model and dataset."""
        nouns = {"model_id": self.ready_model, "calibration_dataset_id": self.ready_dataset}
        return {**{name: make() for name, make in nouns.items() if name not in changes}, **changes}

    def new_job(self, **changes: Any) -> str:
        """A queued quantize job."""
        return self._made("jobs", self.job_body(**changes), 202)

    def claim(self, job_id: str, *, lease_seconds: float = LEASE_SECONDS) -> Job:
        """Take the job as a worker would."""
        with self.app.database.write() as session:
            job = transitions.claim(session, job_id, worker_id=WORKER, lease_seconds=lease_seconds)
        assert job is not None
        return job

    def finish(self, job_id: str, result: Outcome) -> None:
        """Claim the job and have it succeed."""
        job = self.claim(job_id)
        with self.app.database.write() as session:
            assert transitions.succeed(session, job_id, job.attempt, result=result)

    def fail(self, job_id: str, error: QuantmillError) -> None:
        """Claim the job and have it fail."""
        job = self.claim(job_id)
        with self.app.database.write() as session:
            assert transitions.fail(session, job_id, job.attempt, problem=error.problem())

    def run_late(self, job_id: str) -> None:
        """Let the queued job's deadline pass, and the reconciler see it."""
        with self.app.database.write() as session:
            then = {"created_at": db_now() - 101, "deadline_at": db_now() - 1}
            session.execute(update(Job).where(Job.id == job_id).values(**then))
            assert [job.id for job in transitions.expire_deadlines(session)] == [job_id]

    def store(self, data: bytes) -> str:
        """Put bytes into the store; returns their sha256."""
        path = self.app.settings.data_dir / f"artifact-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        return self.app.store.put_file(path).sha256

    def kept(self, kind: str, filename: str, data: bytes, media_type: str = "application/octet-stream") -> NewArtifact:
        """A file of a job, with these bytes in the store."""
        return NewArtifact(kind, filename, media_type, self.store(data), len(data))

    def succeeded_job(self, data: bytes = b"quantized bytes", *, filename: str = "model.int8.onnx") -> str:
        """A job with a report and one artifact of kind model."""
        job_id = self.new_job()
        self.finish(job_id, QuantizeOutcome(make_report(), (self.kept("model", filename, data),)))
        return job_id


def problem(response: Any, status: int, code: str) -> Mapping[str, Any]:
    """Assert that a response is this problem; returns its body."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["type"] == f"/v1/problems#{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    return body


def taken(response: Any, status: int = 200) -> dict[str, Any]:
    """Assert that a request was answered with this status; returns the body."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    return body


def pointers(body: Mapping[str, Any]) -> list[str]:
    """JSON pointers of a problem's errors."""
    return [error["pointer"] for error in body["errors"]]
