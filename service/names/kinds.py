"""What has a name: models and datasets, as far as they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from service.datasets.errors import DatasetInUseError, DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError
from service.ids import Prefix
from service.models.errors import ModelInUseError, ModelNotFoundError, ModelNotReadyError, ModelRejectedError
from service.nouns import NounInUseError, NounNotFoundError, NounNotReadyError, NounRejectedError
from service.tables import Dataset, Model

Named = TypeVar("Named", Model, Dataset)


@dataclass(frozen=True)
class Kind(Generic[Named]):
    """One of the nouns: its word, the prefix of its ids, its table, and the errors that say what keeps it from use."""

    word: Literal["model", "dataset"]
    prefix: Prefix
    table: type[Named]
    not_found: type[NounNotFoundError]
    not_ready: type[NounNotReadyError]
    rejected: type[NounRejectedError]
    in_use: type[NounInUseError]


MODELS = Kind("model", "mdl", Model, ModelNotFoundError, ModelNotReadyError, ModelRejectedError, ModelInUseError)
DATASETS = Kind(
    "dataset", "dst", Dataset, DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError, DatasetInUseError
)
