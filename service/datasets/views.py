"""What datasets look like from outside."""

from __future__ import annotations

from service.contracts.dataset import DatasetSummary, PreprocessingSpec
from service.contracts.errors import Problem
from service.datasets.schemas import DatasetLinks, DatasetOut
from service.idempotency.answers import Answer
from service.jobs.schemas import Waiting
from service.names.service import row_etag
from service.tables import Dataset


def dataset_out(dataset: Dataset) -> DatasetOut:
    """The dataset as it is shown."""
    return _shown(dataset, None if dataset.summary is None else DatasetSummary.model_validate(dataset.summary))


def dataset_in_list(dataset: Dataset) -> DatasetOut:
    """The dataset as lists tell of it: without what grows with its content, which is not so much as read."""
    return _shown(
        dataset, None if dataset.outline is None else DatasetSummary.model_validate(dataset.outline).outline()
    )


def _shown(dataset: Dataset, summary: DatasetSummary | None) -> DatasetOut:
    path = f"/v1/datasets/{dataset.id}"
    return DatasetOut(
        id=dataset.id,
        name=dataset.name,
        version=dataset.version,
        format=dataset.format,
        status=dataset.status,
        tags=dataset.tags,
        description=dataset.description,
        sha256=dataset.sha256,
        size_bytes=dataset.size_bytes,
        preprocessing=PreprocessingSpec.model_validate(dataset.preprocessing),
        summary=summary,
        problems=[Problem.model_validate(problem) for problem in dataset.problems or []],
        waiting=None if dataset.waiting is None else Waiting.model_validate(dataset.waiting),
        created_at=dataset.created_at,
        updated_at=dataset.updated_at,
        links=DatasetLinks(self=path, thumbnails=f"{path}/thumbnails" if dataset.thumbnails_sha256 else None),
    )


def created(dataset: Dataset) -> Answer:
    """The answer to the request that made it."""
    headers = {"Location": f"/v1/datasets/{dataset.id}", "Retry-After": "1", "ETag": row_etag(dataset)}
    return Answer(201, dataset_out(dataset).model_dump(mode="json"), headers)
