"""Named resources: the differences between models and datasets, and whether one is usable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from service.contracts.base import read_stored
from service.contracts.errors import Problem
from service.datasets.schemas import DatasetInUseError, DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError
from service.ids import Prefix
from service.models.schemas import ModelInUseError, ModelNotFoundError, ModelNotReadyError, ModelRejectedError
from service.resources import ResourceInUseError, ResourceNotFoundError, ResourceNotReadyError, ResourceRejectedError
from service.tables import Dataset, Model

Named = TypeVar("Named", Model, Dataset)


@dataclass(frozen=True)
class ResourceKind(Generic[Named]):
    """Models or datasets: word, prefix of ids, table, and the errors that say what keeps one from use."""

    word: Literal["model", "dataset"]
    prefix: Prefix
    table: type[Named]
    not_found: type[ResourceNotFoundError]
    not_ready: type[ResourceNotReadyError]
    rejected: type[ResourceRejectedError]
    in_use: type[ResourceInUseError]


MODELS = ResourceKind(
    "model", "mdl", Model, ModelNotFoundError, ModelNotReadyError, ModelRejectedError, ModelInUseError
)
DATASETS = ResourceKind(
    "dataset", "dst", Dataset, DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError, DatasetInUseError
)


def require_ready(kind: ResourceKind[Named], row: Named, *, pointer: str) -> None:
    """Let nothing be done with what is not ready.

    Raises:
        ResourceNotReadyError: validation has not ended.
        ResourceRejectedError: it was found unusable.
    """
    if row.status == "validating":
        raise kind.not_ready(row.id, pointer=pointer)
    if row.status == "rejected":
        reasons = [read_stored(Problem, problem) for problem in row.problems or []]
        raise kind.rejected(row.id, pointer=pointer, reasons=reasons)
