"""Datasets: uploaded, and shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.client.connection import Noun, id_of
from service.client.driving import Call, Each
from service.client.nouns import NounCalls, told_of
from service.client.steps import Items, Steps
from service.client.uploads import UploadCalls, UploadProgress
from service.client.validation import ValidationCalls
from service.contracts.dataset import PreprocessingSpec
from service.datasets.schemas import DatasetOut
from service.resources import ResourceStatus


class DatasetCalls(NounCalls, UploadCalls, ValidationCalls):
    """Calls of ``/v1/datasets``."""

    @Call
    def push_dataset(
        self,
        path: Path | str,
        preprocessing: PreprocessingSpec | Mapping[str, Any] | str | None = None,
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Steps[DatasetOut]:
        """Upload a dataset: .npz or .safetensors, or .tar, .tar.gz or .zip of pictures or sounds.

        It is being validated when this returns: see ``wait_ready``; ``submit`` waits for it by itself.

        Args:
            path: the file.
            preprocessing: how the data becomes model inputs: a spec, or the name of one.
            name: of the dataset; default: that of the file.
            tags: to find it by.
            description: for people.
            progress: as for ``upload_file``.
        """
        file = Path(path)
        upload = yield from self._upload(file, "dataset", progress)
        body: dict[str, Any] = {"name": name or file.stem, "upload_id": upload.id, **told_of(tags, description)}
        if isinstance(preprocessing, PreprocessingSpec):
            body["preprocessing"] = preprocessing.model_dump(mode="json")
        elif preprocessing is not None:
            body["preprocessing"] = preprocessing if isinstance(preprocessing, str) else dict(preprocessing)
        return DatasetOut.model_validate((yield from self._create("/v1/datasets", body)))

    @Call
    def dataset(self, dataset: Noun | str) -> Steps[DatasetOut]:
        """The dataset as it is now, by its id or a reference such as ``NAME@prod``."""
        return DatasetOut.model_validate(
            (yield from self._json("GET", (yield from self._at("dataset", id_of(dataset)))))
        )

    @Each
    def datasets(
        self,
        *,
        name: str | None = None,
        status: ResourceStatus | None = None,
        sha256: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Items[DatasetOut, None]:
        """All datasets, newest first, read page by page.

        Args:
            name: the versions of this name alone.
            status: only those in this status.
            sha256: those whose main file this is.
            tags: those that have all of these.
            limit: at most so many.
        """
        yield from self._list("/v1/datasets", DatasetOut, limit, name=name, status=status, sha256=sha256, tags=tags)

    @Call
    def thumbnails(self, dataset: Noun | str) -> Steps[bytes]:
        """A sheet of small pictures of a ready dataset of pictures, PNG."""
        return (yield from self._request("GET", f"/v1/datasets/{id_of(dataset)}/thumbnails")).content
