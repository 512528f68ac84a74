"""Results into MLflow: ``log_job`` makes a run of a job that a service has done, and registers its model.

Needs the extra ``mlflow``, which is loaded with the first call; loads neither the server nor torch nor onnxruntime.
"""

from __future__ import annotations

from service.client.errors import MlflowFailedError, MlflowMissingError, NotRegisteredError
from service.client.mlflow_runs import LoggedRun, log_job

__all__ = ["LoggedRun", "MlflowFailedError", "MlflowMissingError", "NotRegisteredError", "log_job"]
