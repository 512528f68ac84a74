"""What serves a quantization, whatever it quantizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from service.contracts.runner import DATA_FILE
from worker.quantizer.graph.spill import SpillFolder
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.extra import ExtraFiles
from worker.quantizer.run.interface import Run
from worker.quantizer.run.progress import Stages


def nobody(place: str) -> None:
    """Told that the run has come to ``place``, and does nothing."""


@dataclass(frozen=True)
class Services:
    """What every stage is served by.

    Attributes:
        run: progress, log, cancellation.
        threads: CPU threads.
        stages: takes the seconds and the memory of each stage.
        checkpoint: finished pieces of this run's work, for an attempt after this one and for runs that need the same.
        files: takes what the run gives beside the model.
        reached: told the name of a place in the work that the run has come to; tests let it fail there.
        spill: takes arrays that are too large to be held; None: the model is not.
        data_file: name of the file of external data that a model above 2 GB refers to.
    """

    run: Run
    threads: int
    stages: Stages = field(default_factory=Stages)
    checkpoint: CheckpointStore = field(default_factory=lambda: CheckpointStore(None))
    files: ExtraFiles = field(default_factory=ExtraFiles)
    reached: Callable[[str], None] = nobody
    spill: SpillFolder | None = None
    data_file: str = DATA_FILE
