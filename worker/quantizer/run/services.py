"""What serves a quantization, whatever it quantizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from worker.quantizer.run.cache import Cache
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.extra import ExtraFiles
from worker.quantizer.run.interface import Run
from worker.quantizer.run.stages import Stages


@dataclass(frozen=True)
class Services:
    """What every stage is served by.

    Attributes:
        run: progress, log, cancellation.
        threads: CPU threads.
        stages: takes the seconds and the memory of each stage.
        checkpoint: finished pieces of this run's work, for an attempt after this one.
        cache: what runs have computed, for every later run that needs the very same.
        files: takes what the run gives beside the model.
    """

    run: Run
    threads: int
    stages: Stages = field(default_factory=Stages)
    checkpoint: CheckpointStore = field(default_factory=lambda: CheckpointStore(None))
    cache: Cache = field(default_factory=lambda: Cache(None))
    files: ExtraFiles = field(default_factory=ExtraFiles)
