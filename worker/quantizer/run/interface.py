"""What the engine needs of its surroundings while it works: a place to report progress and a way to be stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable


@runtime_checkable
class Run(Protocol):
    """Progress, log and cancellation of one run; implemented by the runner process, the CLI and the tests."""

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Say how far ``stage`` has come. Called often: must be cheap.

        Args:
            stage: its name.
            done: how many are done.
            total: of how many; None while unknown.
            unit: what is counted.
            message: what it is about now.
            share: of the stage's time that is done, where not every one of them takes as long; None: done / total.
        """

    def overall(self, share: float, seconds_left: float) -> None:
        """Say how far the whole has come: 0 to 1, never falling, 1 at the end only. Called often: must be cheap."""

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Tell figures of one step of a stage, such as an epoch of a training."""

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Say something a person may want to read."""

    def check(self) -> None:
        """Raise CanceledError if the run has to stop. Called between batches and between steps."""

    def try_written(self, folder: Path) -> int | None:
        """Where this process may make no others: have ``worker.quantizer.written.program`` run on ``folder``.

        Returns:
            Its exit code, or minus the signal that ended it; None: nobody can start it.

        Raises:
            CanceledError: the run was canceled meanwhile.
        """


class SilentRun:
    """A run that nobody watches and nobody cancels."""

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Ignore progress."""

    def overall(self, share: float, seconds_left: float) -> None:
        """Ignore it."""

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Ignore figures."""

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Ignore messages."""

    def check(self) -> None:
        """Never canceled."""

    def try_written(self, folder: Path) -> int | None:
        """Nobody can."""
        return None


class ForwardingRun:
    """Another run, which is told everything; for those that change a part of it.

    Args:
        run: takes progress, figures and log, and may be canceled.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Pass it on."""
        self._run.progress(stage, done, total, unit, message, share=share)

    def overall(self, share: float, seconds_left: float) -> None:
        """Pass it on."""
        self._run.overall(share, seconds_left)

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Pass it on."""
        self._run.metric(stage, step, values)

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Pass it on."""
        self._run.log(message, level)

    def check(self) -> None:
        """Raise CanceledError if the run has to stop."""
        self._run.check()

    def try_written(self, folder: Path) -> int | None:
        """Pass it on."""
        return self._run.try_written(folder)
