"""What the engine needs of its surroundings while it works: a place to report progress and a way to be stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol


class Run(Protocol):
    """Progress, log and cancellation of one run; implemented by the runner process, the CLI and the tests."""

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        """Say how far ``stage`` has come. Called often: must be cheap."""

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Tell figures of one step of a stage, such as an epoch of a training."""

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Say something a person may want to read."""

    def check(self) -> None:
        """Raise CanceledError if the run has to stop. Called between batches and between steps."""


class SilentRun:
    """A run that nobody watches and nobody cancels."""

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        """Ignore progress."""

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Ignore figures."""

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Ignore messages."""

    def check(self) -> None:
        """Never canceled."""
