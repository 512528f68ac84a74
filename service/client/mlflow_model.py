"""A quantized model in MLflow's form: the folder that its ONNX flavour, and what serves models, reads.

Written as text, for MLflow's own writer wants the model parsed by the package onnx, and guesses versions of this host.
Sources: mlflow.org, "MLflow Model", storage format; mlflow/onnx/__init__.py (save_model, _load_pyfunc).
"""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import Any

from service.artifacts.schemas import ArtifactOut
from service.contracts.report import Report
from service.jobs.schemas import JobOut

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
