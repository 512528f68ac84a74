"""Datasets: uploaded, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.client.uploads import UploadCalls, UploadProgress
from service.client.validation import ValidationCalls
from service.contracts.dataset import PreprocessingSpec
from service.datasets.schemas import DatasetOut


class DatasetCalls(UploadCalls, ValidationCalls):
    """Calls of ``/v1/datasets``."""

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

    def thumbnails(self, dataset_id: str) -> bytes:
        """A sheet of small pictures of a ready dataset of pictures, PNG."""
        path = f"/v1/datasets/{dataset_id}/thumbnails"
        return self._transport.patiently(lambda: self._transport.send("GET", path)).content
