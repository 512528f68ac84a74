"""Jobs that would give what another has given: told by a digest of all that a result follows from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy.orm import Session

from service.contracts.version import VERSION
from service.datasets import repository as datasets
from service.jobs.schemas import JobCreate
from service.models import repository as models
from service.tables import Dataset


def result_digest(session: Session, tenant_id: str, asked: JobCreate, config: dict[str, Any]) -> str:
    """SHA-256, 64 hexadecimal digits, over the bytes of model and data, the resolved config, device and engine.

    Args:
        session: reads.
        tenant_id: whose request it is.
        asked: what was checked: its model and datasets are there.
        config: resolved, as JSON.
    """
    model = models.resolved(session, tenant_id, asked.model_id)
    followed = {
        "engine": VERSION,
        "device": asked.device,
        "model": sorted((file.path, file.sha256) for file in model.graph_files),
        "calibration": _data(session, tenant_id, asked.calibration_dataset_id),
        "evaluation": _data(session, tenant_id, asked.evaluation_dataset_id),
        "config": config,
    }
    return hashlib.sha256(json.dumps(followed, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _data(session: Session, tenant_id: str, dataset_id: str | None) -> tuple[str, Any] | None:
    if dataset_id is None:
        return None
    dataset: Dataset = datasets.resolved(session, tenant_id, dataset_id)
    return dataset.sha256, dataset.preprocessing
