"""Files of one command on a service: taken if they are there, else uploaded under names that nobody else uses.

A name with a version is what schedules and aliases go by: what one command uploads must not become its latest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from service.client import Client
from service.contracts.dataset import PreprocessingSpec
from service.datasets.schemas import DatasetOut
from service.models.schemas import ModelOut
from worker.commands.console import ProgressView

_DIGEST_CHARS, _NAME_CHARS = 12, 180
_USABLE = ("ready", "validating")
# Of the same bytes there may be several, with other external data or another preprocessing.
_LOOKED_AT = 20


def model_of(client: Client, path: Path, view: ProgressView) -> ModelOut:
    """The model of a file: one of the same bytes, without external data, that was not rejected, or a new one."""
    digest = _digest(path)
    for found in client.models(sha256=digest, limit=_LOOKED_AT):
        if found.status in _USABLE and found.format == "onnx" and len(found.files) == 1:
            view.log(f"{path.name} is there: {found.name}@{found.version}")
            return found
    return client.push_model(path, name=_name(path, digest), progress=uploading(view, path))


def dataset_of(client: Client, path: Path, preprocessing: PreprocessingSpec, view: ProgressView) -> DatasetOut:
    """The dataset of a file: one of the same bytes and preprocessing that was not rejected, or a new one."""
    digest = _digest(path)
    for found in client.datasets(sha256=digest, limit=_LOOKED_AT):
        if found.status in _USABLE and found.preprocessing == preprocessing:
            view.log(f"{path.name} is there: {found.name}@{found.version}")
            return found
    return client.push_dataset(path, preprocessing, name=_name(path, digest), progress=uploading(view, path))


def uploading(view: ProgressView, path: Path) -> Callable[[int, int], None]:
    """What tells ``view`` how far the upload of ``path`` has come."""
    stage = f"upload {path.name}"
    return lambda sent, total: view.progress(stage, sent, total, "bytes")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: Path, digest: str) -> str:
    return f"{path.stem[:_NAME_CHARS].replace('@', '-')} {digest[:_DIGEST_CHARS]}"
