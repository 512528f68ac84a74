"""Errors of the hand-over to MLflow."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class MlflowMissingError(QuantmillError):
    """MLflow's client is not installed."""

    code = "mlflow-missing"
    title = "MLflow is not installed"
    status = 501


class MlflowFailedError(QuantmillError):
    """MLflow refused, or cannot be reached. What it has until then is completed by the next call."""

    code = "mlflow-failed"
    title = "The hand-over to MLflow failed"
    status = 502


class NotRegisteredError(QuantmillError):
    """A model that has not passed its gate is not registered."""

    code = "not-registered"
    title = "The model is not registered"
    status = 409
