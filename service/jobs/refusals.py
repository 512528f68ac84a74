"""Why a request for a job is refused that reads a model and data, whatever is to be done with them."""

from __future__ import annotations

from service.contracts.errors import DatasetMismatchError, InvalidConfigError
from service.datasets.errors import DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError
from service.models.errors import ModelNotFoundError, ModelNotReadyError, ModelRejectedError
from service.quarantine.errors import ModelQuarantinedError

MATERIAL_REFUSALS = (
    DatasetMismatchError,
    DatasetNotFoundError,
    DatasetNotReadyError,
    DatasetRejectedError,
    InvalidConfigError,
    ModelNotFoundError,
    ModelNotReadyError,
    ModelQuarantinedError,
    ModelRejectedError,
)
