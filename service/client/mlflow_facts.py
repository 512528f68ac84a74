"""What a job is as a run of MLflow: its parameters, metrics and tags, and its model."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from service.artifacts.schemas import ArtifactOut
from service.client.errors import shown
from service.contracts.report import Report
from service.jobs.schemas import JobOut

MOST_KEY_CHARS = 250
MOST_PARAM_CHARS = 6000
MOST_TAG_CHARS = 5000
# A config may name every tensor of a network: what is beyond stands in config.json alone.
MOST_PARAMS = 500

PREFIX = "quantmill."
JOB_TAG = f"{PREFIX}job_id"
# The digest of the model, set last: the run holds all that there is.
COMPLETE_TAG = f"{PREFIX}complete"
LEFT_OUT_TAG = f"{PREFIX}params_left_out"
ATTESTATION_TAG = f"{PREFIX}attestation"
_LABEL = f"{PREFIX}label."
_NOTE_TAG = "mlflow.note.content"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_\-. :/]")


def key_of(name: str) -> str:
    """``name`` as MLflow takes it for a key: other characters become ``_``; as a path it has no shorter form."""
    key = _NOT_IN_KEYS.sub("_", name).lstrip("/.") or "_"
    return posixpath.normpath(key)


def params_of(config: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """The fields of a resolved config by their path, ``weight.dtype`` or ``algorithms.0.method``; nulls are left out.

    Second is how many fields are too long, or too many, to be params: they are left out whole, for a value that was
    cut would be another.
    """
    values: dict[str, str] = {}
    left_out = 0
    for path, value in _leaves(config, ""):
        key, text = key_of(path), value if isinstance(value, str) else json.dumps(value)
        fits = len(key) <= MOST_KEY_CHARS and len(text) <= MOST_PARAM_CHARS and key not in values
        if fits and len(values) < MOST_PARAMS:
            values[key] = text
        else:
            left_out += 1
    return values, left_out


def metrics_of(report: Report, seconds: float | None) -> dict[str, float]:
    """Figures of a report by name; those that it does not have are left out.

    Args:
        report: of the job.
        seconds: that the job took.
    """
    latency = report.latency
    found: dict[str, float | None] = {
        "sqnr_db": report.fidelity.sqnr_db,
        "cosine": report.fidelity.cosine,
        "top1_agreement": report.fidelity.top1_agreement,
        "samples": report.fidelity.samples,
        "float.size_bytes": report.float_.size_bytes,
        "quantized.size_bytes": report.quantized.size_bytes,
        "size_ratio": report.quantized.size_bytes / report.float_.size_bytes if report.float_.size_bytes else None,
        "float.latency_ms": None if latency is None else latency.float_ms,
        "quantized.latency_ms": None if latency is None else latency.quantized_ms,
        "latency_ratio": None if latency is None else latency.ratio,
        "layers_in_float": sum(layer.reason is not None for layer in report.layers),
        "seconds": seconds,
    }
    for metric in report.metrics:
        for part, value in (("float", metric.float_), ("quantized", metric.quantized), ("drop", metric.drop)):
            found[f"{key_of(metric.name)[: MOST_KEY_CHARS - 10]}.{part}"] = value
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def tags_of(job: JobOut, report: Report, artifacts: Iterable[ArtifactOut], service_url: str) -> dict[str, str]:
    """Who made it, of what, how it was judged; labels as ``quantmill.label.KEY``.

    Args:
        job: that has succeeded.
        report: of it.
        artifacts: of it.
        service_url: where it ran; a user, a password and a query in it are not told.
    """
    found = {
        JOB_TAG: job.id,
        f"{PREFIX}verdict": report.verdict,
        f"{PREFIX}model_id": job.model_id,
        f"{PREFIX}model": f"{job.model_name}@{job.model_version}" if job.model_name else None,
        f"{PREFIX}preset": job.preset,
        f"{PREFIX}target": report.manifest.config.target,
        f"{PREFIX}engine_version": report.manifest.engine_version,
        f"{PREFIX}source_sha256": report.manifest.model_sha256,
        f"{PREFIX}calibration_sha256": report.manifest.calibration_sha256,
        f"{PREFIX}evaluation_sha256": report.manifest.evaluation_sha256,
        f"{PREFIX}manifest_sha256": report.manifest.manifest_sha256,
        f"{PREFIX}service": shown(service_url),
        _NOTE_TAG: report.summary,
        **{f"{PREFIX}{artifact.kind}.sha256": artifact.sha256 for artifact in artifacts},
        **{f"{_LABEL}{name}": value for name, value in job.labels.items()},
    }
    # no digest and no label is as long as a tag may be: what is cut is the sentence for people
    return {key_of(name): str(value)[:MOST_TAG_CHARS] for name, value in found.items() if value}


def stale_labels(there: Iterable[str], tags: Mapping[str, str]) -> list[str]:
    """Of the tags of a run, those of labels that the job has no longer."""
    return [name for name in there if name.startswith(_LABEL) and name not in tags]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Fields and what they hold; a list of plain values is one."""
    below: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        below = value.items()
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        below = ((str(index), item) for index, item in enumerate(value))
    else:
        if value is not None:
            yield path, value
        return
    for name, item in below:
        yield from _leaves(item, f"{path}.{name}" if path else str(name))


MODEL_FOLDER = "model"
_PYTHON = "3.11"
# What runs a model; pinned to what it was measured with.
_RUNS_IT = ("onnx", "onnxruntime", "numpy")
_PROVIDERS = ["CPUExecutionProvider"]


def write_model_files(model: Path, job: JobOut, report: Report, artifact: ArtifactOut, *, run_id: str) -> None:
    """Write ``MLmodel`` and what it names beside the model's file. The same job and run give the same bytes.

    Args:
        model: the ONNX file in its folder.
        job: that made it.
        report: of the job.
        artifact: the model's.
        run_id: of MLflow.
    """
    versions = report.manifest.versions
    pins = [f"{name}=={versions[name]}" for name in _RUNS_IT if name in versions]
    folder = model.parent
    (folder / "requirements.txt").write_text("".join(f"{pin}\n" for pin in ("mlflow", *pins)))
    python = {
        "python": versions.get("python", _PYTHON),
        "build_dependencies": ["pip"],
        "dependencies": ["-r requirements.txt"],
    }
    # JSON is YAML
    (folder / "python_env.yaml").write_text(json.dumps(python, indent=2) + "\n")
    document = _document(model.name, job, report, artifact, run_id)
    (folder / "MLmodel").write_text(json.dumps(document, indent=2) + "\n")


def _document(file: str, job: JobOut, report: Report, artifact: ArtifactOut, run_id: str) -> dict[str, Any]:
    made_at = (job.finished_at or job.updated_at).astimezone(UTC).replace(tzinfo=None)
    return {
        "artifact_path": MODEL_FOLDER,
        "flavors": {
            "onnx": {
                "onnx_version": report.manifest.versions.get("onnx"),
                "data": file,
                "providers": _PROVIDERS,
                "onnx_session_options": None,
                "code": None,
            },
            "python_function": {
                "loader_module": "mlflow.onnx",
                "data": file,
                "env": {"virtualenv": "python_env.yaml"},
                "python_version": report.manifest.versions.get("python", _PYTHON),
            },
        },
        "model_size_bytes": artifact.size_bytes,
        "model_uuid": artifact.sha256[:32],
        "run_id": run_id,
        "utc_time_created": made_at.isoformat(sep=" ", timespec="microseconds"),
        "metadata": {"sha256": artifact.sha256, "quantmill.job_id": job.id, "quantmill.verdict": report.verdict},
    }
