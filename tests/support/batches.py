"""Batches as tests make them, and jobs of theirs that end."""

from __future__ import annotations

from typing import Any

from service.contracts.errors import EngineError
from service.jobs.outcome import QuantizeOutcome
from tests.support.front import Front, make_report, taken


def grid_body(front: Front, *, models: int = 2, presets: tuple[str, ...] = ("int8", "xint8"), **more: Any) -> Any:
    """A request for a grid over ready models and one dataset."""
    return {
        "models": [front.ready_model() for _ in range(models)],
        "presets": list(presets),
        "calibration_dataset_id": front.ready_dataset(),
        **more,
    }


def submitted(front: Front, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The batch that was made."""
    return taken(front.http.post("/v1/batches", json=body, headers=headers), 202)


def shown(front: Front, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch as it is now."""
    return taken(front.http.get(f"/v1/batches/{batch['id']}"))


def job_of(batch: dict[str, Any], member: int) -> str:
    """The job of a member."""
    found: str = batch["members"][member]["job_id"]
    return found


def succeed(front: Front, job_id: str, *, drop: float = 0.5, size_bytes: int = 1000, verdict: str = "none") -> None:
    """Have the job succeed with such figures."""
    document = make_report(verdict).to_json_dict()
    document["metrics"][0] |= {"quantized": 90.0 - drop, "drop": drop}
    document["quantized"]["size_bytes"] = size_bytes
    artifact = front.kept("model", "model.int8.onnx", job_id.encode())
    front.finish(job_id, QuantizeOutcome(type(make_report()).model_validate(document), (artifact,)))


def fail(front: Front, job_id: str) -> None:
    """Have the job fail."""
    front.fail(job_id, EngineError("The engine failed.", hint="Report it."))
