"""Jobs that would give what another has given: told by a digest of all that a result follows from."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from service.contracts.version import VERSION
from service.jobs.checking import Named
from service.jobs.schemas import JobCreate
from service.tables import Dataset


def result_digest(asked: JobCreate, named: Named, config: dict[str, Any]) -> str:
    """SHA-256, 64 hexadecimal digits, over the bytes of model and data, the resolved config, device and engine.

    Args:
        asked: what was checked.
        named: the model and the data that it names.
        config: resolved, as JSON.
    """
    followed = {
        "engine": VERSION,
        "device": asked.device,
        "model": sorted((file.path, file.sha256) for file in named.model.graph_files) if named.model else None,
        "calibration": _data(named.calibration),
        "evaluation": _data(named.evaluation),
        "config": config,
    }
    return hashlib.sha256(json.dumps(followed, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _data(dataset: Dataset | None) -> tuple[str, Any] | None:
    return None if dataset is None else (dataset.sha256, dataset.preprocessing)
