"""The state of a training as arrays: to come back to the best epoch, and to go on in another attempt."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from service.contracts.report import TrainingEpoch
from worker.quantizer.evaluation.certainty.evidence import Evidence, document_of
from worker.quantizer.run.checkpoint import Arrays, CheckpointStore, Pace, pack, unpack
from worker.quantizer.training.optimizer import End
from worker.quantizer.training.oscillation import Oscillations
from worker.quantizer.training.twin import Twin
from worker.quantizer.training.validation import ValidationScore

_KEY = "qat state"
# Saving may take this part of the training's time.
_MOST_TIME = 0.05


TwinState = Mapping[str, torch.Tensor]


def state_of(twin: Twin) -> TwinState:
    """All that a twin has learned, as it is now; ``load_state_dict`` brings it back there."""
    return {name: tensor.detach().clone() for name, tensor in twin.state_dict().items()}


@dataclass
class TrainingProgress:
    """Where a training stands.

    Attributes:
        epochs: told so far, the first of them before any step.
        best_epoch: the one that is kept.
        best: what the twin had learned then.
        lowest_epoch: the one with the best score.
        lowest: its score.
        budget: the number of steps and what bounds it, once they are fixed.
        spent_seconds: by all attempts.
    """

    epochs: list[TrainingEpoch]
    best_epoch: int
    best: TwinState
    lowest_epoch: int
    lowest: ValidationScore
    budget: tuple[int, End] | None = None
    spent_seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """Number of the last epoch."""
        return self.epochs[-1].epoch

    @property
    def steps(self) -> int:
        """Taken by its end."""
        return self.epochs[-1].steps


class TrainingCheckpoints:
    """Checkpoints of one training: after each epoch, unless epochs are so short that saving would slow them down.

    Args:
        store: of the run.
        twin: whose state it is.
    """

    def __init__(self, store: CheckpointStore, twin: Twin) -> None:
        self._store, self._twin = store, twin
        self._pace = Pace(_MOST_TIME)

    def save(
        self, optimizer: torch.optim.Optimizer, oscillations: Mapping[str, Oscillations], progress: TrainingProgress
    ) -> None:
        """Keep the state after an epoch."""
        if not self._store.is_kept or not self._pace.is_due:
            return
        began, lowest = time.monotonic(), progress.lowest
        facts = {
            "epochs": [entry.model_dump(mode="json") for entry in progress.epochs],
            "best_epoch": progress.best_epoch,
            "lowest_epoch": progress.lowest_epoch,
            "lowest": {
                "loss": lowest.loss,
                "metric": lowest.metric,
                "evidence": document_of(lowest.evidence),
                "losses": lowest.losses,
            },
            "budget": progress.budget,
            "spent_seconds": progress.spent_seconds,
        }
        arrays: Arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        arrays |= {f"now\n{name}": _array(tensor) for name, tensor in self._twin.state_dict().items()}
        arrays |= {f"best\n{name}": _array(tensor) for name, tensor in progress.best.items()}
        for place, state in optimizer.state_dict()["state"].items():
            arrays |= {f"moves\n{place}\n{key}": _array(value) for key, value in state.items() if value is not None}
        for name, one in oscillations.items():
            arrays |= {f"jumps\n{name}\n{key}": array for key, array in one.state().items()}
        self._store.save(_KEY, pack(arrays))
        self._pace.spent(began)

    def load(
        self, optimizer: torch.optim.Optimizer, oscillations: Mapping[str, Oscillations]
    ) -> TrainingProgress | None:
        """Bring twin, optimizer and oscillations to where an earlier attempt stood; None if there was none."""
        arrays = self._store.load_as(_KEY, unpack)
        if arrays is None:
            return None
        facts = json.loads(arrays["facts"].tobytes())
        device = next(self._twin.parameters()).device
        self._twin.load_state_dict(_tensors(arrays, "now\n", device))
        state = optimizer.state_dict()
        for name, tensor in _tensors(arrays, "moves\n", device).items():
            place, key = name.split("\n")
            state["state"].setdefault(int(place), {})[key] = tensor.cpu() if key == "step" else tensor
        optimizer.load_state_dict(state)
        for name, one in oscillations.items():
            prefix = f"jumps\n{name}\n"
            one.load_state(
                {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}, device
            )
        lowest, budget = facts["lowest"], facts["budget"]
        evidence = Evidence.from_document(lowest["evidence"])
        return TrainingProgress(
            epochs=[TrainingEpoch.model_validate(entry) for entry in facts["epochs"]],
            best_epoch=facts["best_epoch"],
            best=_tensors(arrays, "best\n", device),
            lowest_epoch=facts["lowest_epoch"],
            lowest=ValidationScore(lowest["loss"], lowest["metric"], evidence, tuple(lowest["losses"])),
            budget=None if budget is None else (budget[0], cast(End, budget[1])),
            spent_seconds=facts["spent_seconds"],
        )


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.detach().cpu().numpy())


def _tensors(arrays: Arrays, prefix: str, device: torch.device) -> dict[str, torch.Tensor]:
    return {
        name[len(prefix) :]: torch.from_numpy(np.array(array)).to(device)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
