"""Models and datasets made of what a form has sent, or of the example that comes with the service."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from service.contracts.dataset import ArrayFormat, FileFormat
from service.contracts.errors import InvalidRequestError, problem_summary
from service.contracts.preprocessing import named_preprocessing
from service.contracts.validation import field_problems
from service.dashboard.config_fields import parsed
from service.datasets import service as datasets
from service.datasets.schemas import DatasetCreate
from service.deps import AppState
from service.idempotency.answers import Answer, IdempotencyInFlightError, IdempotencyKeyReuseError
from service.models import service as models
from service.models.schemas import ModelCreate
from service.names.kinds import DATASETS, MODELS, Named, ResourceKind
from service.names.repository import ResourceQuery
from service.names.service import list_page
from service.principal import Principal
from service.tables import Dataset
from service.uploads import service as uploads
from service.uploads.schemas import UploadCreate

_BLOCK = 1024**2
# For the transaction of another click on the same button.
_LOOKS, _LOOK_SECONDS = 50, 0.1
_Record = TypeVar("_Record", bound=BaseModel)
# Files and names of the example; the digits are stored as integers 0..16, the model was trained on 0..1.
_EXAMPLE_MODEL, _EXAMPLE_CALIBRATION, _EXAMPLE_EVALUATION = "digits.onnx", "calibration.npz", "evaluation.npz"
_EXAMPLE_NAMES = {
    _EXAMPLE_MODEL: "example-digits",
    _EXAMPLE_CALIBRATION: "example-digits-calibration",
    _EXAMPLE_EVALUATION: "example-digits-evaluation",
}
_EXAMPLE_PREPROCESSING = {"inputs": {"image": {"layout": "NHW", "model_layout": "NCHW", "scale": 1 / 16}}}
# Names of preprocessing that the form offers, in words.
_SCALED = "Images 0 to 255, fed as x / 255"
_PREPARATIONS = {
    "imagenet_tf": "Images 0 to 255, fed as x / 127.5 - 1 (imagenet_tf)",
    "imagenet_torchvision": "Images 0 to 255, fed as x / 255 by ImageNet's mean and std (imagenet_torchvision)",
    "imagenet_caffe": "Images 0 to 255, fed as BGR minus ImageNet's mean (imagenet_caffe)",
    "cifar10": "Images 0 to 255, fed as x / 255 by CIFAR-10's mean and std (cifar10)",
}
# Endings of files that are taken, of all and of those that hold arrays.
FILE_ENDINGS = tuple(f".{word}" for word in get_args(FileFormat))
ARRAY_ENDINGS = tuple(f".{word}" for word in get_args(ArrayFormat))
EXAMPLE_SPEC = '{"inputs": {"*": {"array": "images", "layout": "NHWC", "scale": 0.00392156862745098}}}'
EXAMPLE_CONFIG = {"evaluation": {"gate": {"metric": "top1", "max_drop": 1.0}}}


def record(model: type[_Record], document: dict[str, Any]) -> _Record:
    """A request as the API takes it.

    Raises:
        InvalidRequestError: it is none; its problems point into the document.
        QuantmillError: as the record itself raises.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = field_problems(error, model)
        raise InvalidRequestError(problem_summary(problems), errors=problems) from None


async def model_of(app: AppState, by: Principal, files: list[UploadFile], name: str | None) -> str:
    """A model of the files of a form; its id.

    Args:
        app: of the process.
        by: who asks.
        files: one that ends in .onnx, and its external data.
        name: of the model; None: that of its file.

    Raises:
        QuantmillError: as uploads and models do; pointers of the name and of the files.
    """
    names = [_plain_name(file) for file in files]
    main = next((one for one in names if one.lower().endswith(".onnx")), names[0])
    document = {"name": name or PurePosixPath(main).stem, "files": [{"upload_id": "-", "path": one} for one in names]}
    record(ModelCreate, document)  # nothing is stored of files that cannot be a model
    stored = [await _stored(app, by, file, one, "model") for file, one in zip(files, names, strict=True)]
    document["files"] = [{"upload_id": one, "path": path} for one, path in zip(stored, names, strict=True)]
    body = record(ModelCreate, document)
    return await _created(app, lambda: models.create(app, by, body, key=None))


async def dataset_of(
    app: AppState, by: Principal, file: UploadFile, name: str | None, preprocessing: str | None
) -> str:
    """A dataset of a file of a form; its id.

    Args:
        app: of the process.
        by: who asks.
        file: the samples.
        name: of the dataset; None: that of its file.
        preprocessing: the name of one, or one as JSON; None: none.

    Raises:
        QuantmillError: as uploads and datasets do; pointers of the name and of the preprocessing.
    """
    filename = _plain_name(file)
    document: dict[str, Any] = {"name": name or PurePosixPath(filename).stem, "upload_id": "-"}
    if preprocessing is not None:
        document["preprocessing"] = _preprocessing(preprocessing)
    record(DatasetCreate, document)
    document["upload_id"] = await _stored(app, by, file, filename, "dataset")
    body = record(DatasetCreate, document)
    return await _created(app, lambda: datasets.create(app, by, body, key=None))


async def dataset_again(app: AppState, by: Principal, row: Dataset, preprocessing: str | None) -> str:
    """The next version of a dataset, of the same stored file; its id.

    Args:
        app: of the process.
        by: who asks.
        row: the version whose file, tags and description it has.
        preprocessing: as of ``dataset_of``.

    Raises:
        QuantmillError: as datasets do; pointers of the preprocessing.
    """
    document = {"name": row.name, "format": row.format, "tags": row.tags, "description": row.description}
    document["preprocessing"] = {} if preprocessing is None else _preprocessing(preprocessing)
    record(DatasetCreate, {**document, "upload_id": "-"})
    stored = {"size_bytes": row.size_bytes, "sha256": row.sha256}  # a known file need not be sent
    announced = record(UploadCreate, {"filename": f"dataset.{row.format}", "kind": "dataset", **stored})
    upload = await app.writes.run(lambda: uploads.create(app, by, announced))
    body = record(DatasetCreate, {**document, "upload_id": upload.id})
    return await _created(app, lambda: datasets.create(app, by, body, key=None))


async def example(app: AppState, by: Principal, nonce: str) -> dict[str, str]:
    """The example's model and data, made unless the tenant has them: ids by the name of the job's field.

    Args:
        app: of the process.
        by: who asks.
        nonce: of the page: of two clicks on its button the second makes nothing anew, even while the first is at it.
    """
    return {
        "model_id": await _example_noun(app, by, MODELS, _EXAMPLE_MODEL, nonce),
        "calibration_dataset_id": await _example_noun(app, by, DATASETS, _EXAMPLE_CALIBRATION, nonce),
        "evaluation_dataset_id": await _example_noun(app, by, DATASETS, _EXAMPLE_EVALUATION, nonce),
    }


async def _example_noun(app: AppState, by: Principal, kind: ResourceKind[Named], file: str, nonce: str) -> str:
    """The id of what the tenant has, or of what is made."""
    found = await _existing(app, by, kind, file)
    if found is not None:
        return found
    upload_id = await _stored_example(app, by, file, kind.word)
    for _ in range(_LOOKS):
        try:
            return await _created(app, _example_work(app, by, kind, file, upload_id, f"{nonce}/{file}"))
        except IdempotencyInFlightError:
            await asyncio.sleep(_LOOK_SECONDS)
        except IdempotencyKeyReuseError:
            break
    # another click was faster; what it has made may have been deleted since
    there = await _existing(app, by, kind, file)
    return there or await _created(app, _example_work(app, by, kind, file, upload_id, None))


def _example_work(
    app: AppState, by: Principal, kind: ResourceKind[Named], file: str, upload_id: str, key: str | None
) -> Callable[[], Answer]:
    document: dict[str, Any] = {"name": _EXAMPLE_NAMES[file]}
    if kind.word == "model":
        model = record(ModelCreate, {**document, "files": [{"upload_id": upload_id, "path": file}]})
        return lambda: models.create(app, by, model, key=key)
    dataset = record(DatasetCreate, {**document, "upload_id": upload_id, "preprocessing": _EXAMPLE_PREPROCESSING})
    return lambda: datasets.create(app, by, dataset, key=key)


async def _existing(app: AppState, by: Principal, kind: ResourceKind[Named], file: str) -> str | None:
    """What the tenant has of this name and these bytes, unless it was rejected."""

    def look() -> str | None:
        query = ResourceQuery(name=_EXAMPLE_NAMES[file], sha256=hashlib.sha256(_example_bytes(file)).hexdigest())
        rows, _ = list_page(app, kind, by.tenant_id, query, after=None, limit=20)
        return next((row.id for row in rows if row.status != "rejected"), None)

    return await app.reads.run(look)


def _example_bytes(file: str) -> bytes:
    return resources.files("service.dashboard").joinpath("examples", file).read_bytes()


async def _stored_example(app: AppState, by: Principal, file: str, kind: str) -> str:
    data = await app.reads.run(lambda: _example_bytes(file))

    async def blocks() -> AsyncIterator[bytes]:
        yield data

    return await _received(app, by, file, len(data), kind, blocks())


async def _stored(app: AppState, by: Principal, file: UploadFile, name: str, kind: str) -> str:
    """The id of a complete upload with the bytes of a form's file, which lie on disk if they are many."""

    async def blocks() -> AsyncIterator[bytes]:
        while block := await file.read(_BLOCK):
            yield block

    return await _received(app, by, name, file.size or 0, kind, blocks())


async def _received(
    app: AppState, by: Principal, name: str, size_bytes: int, kind: str, blocks: AsyncIterator[bytes]
) -> str:
    announced = record(UploadCreate, {"filename": name, "size_bytes": size_bytes, "kind": kind})
    upload = await app.writes.run(lambda: uploads.create(app, by, announced))
    await uploads.receive(app, by, upload.id, uploads.Incoming(blocks, None, size_bytes, None))
    return upload.id


async def _created(app: AppState, work: Callable[[], Answer]) -> str:
    answer = await app.writes.run(work)
    return str(answer.body["id"])


def _plain_name(file: UploadFile) -> str:
    """The file's own name; some browsers send folders before it."""
    return PurePosixPath((file.filename or "").replace("\\", "/")).name


def preparations() -> list[tuple[str, str, str]]:
    """Preprocessing that is offered: as it is sent, what it is, and the same for arrays, as JSON."""
    named = [(name, words, json.dumps(named_preprocessing(name))) for name, words in _PREPARATIONS.items()]
    return [(EXAMPLE_SPEC, _SCALED, EXAMPLE_SPEC), *named]


def _preprocessing(text: str) -> Any:
    """What is typed: a spec, or the name of one; the data may be arrays or files."""
    if not text.startswith("{"):
        return text
    try:
        return parsed(text)
    except ValueError as error:
        raise InvalidRequestError(f"The preprocessing is {error}.", pointer="/preprocessing") from None
