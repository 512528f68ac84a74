"""Datasets: one upload with a preprocessing spec, validated by an inspect job; and their views."""

from __future__ import annotations

from typing import get_args

from sqlalchemy.orm import Session

from service.contracts.base import read_stored
from service.contracts.dataset import DatasetSummary, FileFormat, PreprocessingSpec, Thumbnails
from service.contracts.errors import InvalidRequestError, Problem
from service.contracts.feeding import fed_as
from service.datasets import repository
from service.datasets.repository import NewDataset
from service.datasets.schemas import DatasetCreate, DatasetLinks, DatasetOut, ThumbnailsNotFoundError
from service.deps import AppState
from service.files import repository as stored_files
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.idempotency.service import submit_once
from service.jobs import transitions
from service.jobs.schemas import Waiting
from service.jobs.transitions import NewJob
from service.names import repository as names
from service.names.kinds import DATASETS, require_ready
from service.names.service import created, get
from service.principal import Principal
from service.tables import Dataset, Job
from service.tables.base import record_of
from service.uploads import repository as uploads
from service.uploads.service import completed

# What datasets look like from outside.


def dataset_out(dataset: Dataset) -> DatasetOut:
    """The dataset as it is shown."""
    return _shown(dataset, None if dataset.summary is None else read_stored(DatasetSummary, dataset.summary))


def dataset_in_list(dataset: Dataset) -> DatasetOut:
    """The dataset as lists tell of it: without what grows with its content, which is not so much as read."""
    return _shown(dataset, None if dataset.outline is None else read_stored(DatasetSummary, dataset.outline).outline())


def _shown(dataset: Dataset, summary: DatasetSummary | None) -> DatasetOut:
    path = f"/v1/datasets/{dataset.id}"
    preprocessing = read_stored(PreprocessingSpec, dataset.preprocessing)
    return record_of(
        dataset,
        DatasetOut,
        preprocessing=preprocessing,
        fed_as=fed_as(preprocessing),
        summary=summary,
        problems=[read_stored(Problem, problem) for problem in dataset.problems or []],
        waiting=None if dataset.waiting is None else read_stored(Waiting, dataset.waiting),
        links=DatasetLinks(self=path, thumbnails=f"{path}/thumbnails" if dataset.thumbnails_sha256 else None),
    )


_ROUTE = "POST /v1/datasets"
_ENDINGS: dict[str, str] = {**{word: word for word in get_args(FileFormat)}, "tgz": "tar.gz"}


def create(app: AppState, by: Principal, body: DatasetCreate, *, key: str | None) -> Answer:
    """Store a dataset in validation and its inspect job, in one transaction; with a known key, answer as then.

    Raises:
        IdempotencyKeyReuseError: the key was used for another body.
        UploadNotFoundError: the upload is not there.
        UploadNotCompleteError: its bytes are not all there.
        InvalidRequestError: the format is neither given nor told by the file's name.
    """

    def work(_: None, session: Session) -> tuple[Answer, Job]:
        upload = uploads.hold(session, by.tenant_id, body.upload_id, pointer="/upload_id")
        stored = completed(upload, pointer="/upload_id")
        stored_files.name_files(session, app.store, [stored.sha256])
        dataset = repository.create(
            session,
            by.tenant_id,
            NewDataset(
                name=body.name,
                format=body.format or _format_of(upload.filename),
                sha256=stored.sha256,
                size_bytes=stored.size_bytes,
                preprocessing=body.preprocessing.model_dump(mode="json"),
                tags=body.tags,
                description=body.description,
            ),
        )
        job = transitions.submit(
            session,
            NewJob(
                by.tenant_id,
                "inspect_dataset",
                dataset_id=dataset.id,
                deadline_seconds=app.settings.job_deadline_seconds,
                request_id=by.request_id,
            ),
        )
        return created(DATASETS, dataset, dataset_out(dataset)), job

    return submit_once(app, by, KeyedRequest.of(_ROUTE, key, body), None, work)


def thumbnails(app: AppState, tenant_id: str, dataset_id: str) -> Thumbnails:
    """What is known of a dataset's sheet of small pictures.

    Raises:
        DatasetNotFoundError: the tenant has no such dataset.
        ThumbnailsNotFoundError: it is not validated, or holds no pictures.
    """
    dataset = get(app, DATASETS, tenant_id, dataset_id)
    summary = None if dataset.summary is None else read_stored(DatasetSummary, dataset.summary)
    if summary is None or summary.thumbnails is None:
        raise ThumbnailsNotFoundError(dataset_id)
    return summary.thumbnails


def usable(session: Session, tenant_id: str, dataset_id: str, *, pointer: str) -> tuple[Dataset, DatasetSummary]:
    """The dataset that a request names by its id or a reference, and what validation found in it.

    Raises:
        DatasetNotFoundError: the tenant has no such dataset.
        DatasetNotReadyError, DatasetRejectedError: it cannot be used.
    """
    dataset = names.look_up(session, DATASETS, tenant_id, dataset_id, pointer=pointer)
    require_ready(DATASETS, dataset, pointer=pointer)
    return dataset, read_stored(DatasetSummary, dataset.summary)


def _format_of(filename: str) -> str:
    found = [word for ending, word in _ENDINGS.items() if filename.lower().endswith(f".{ending}")]
    if not found:
        raise InvalidRequestError(
            f"Unknown file extension: {filename!r}.",
            pointer="/format",
            hint=f"Set format: {', '.join(get_args(FileFormat))}.",
        )
    return found[0]
