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
from worker.quantizer.training.oscillation import Oscillations
from worker.quantizer.training.schedule import End
from worker.quantizer.training.twin import Twin
from worker.quantizer.training.validation import Standing

_KEY = "qat state"
# Saving may take this part of the training's time.
_MOST_TIME = 0.05


@dataclass(frozen=True)
class Memory:
    """All that a twin has learned."""

    state: Mapping[str, torch.Tensor]

    @staticmethod
    def of(twin: Twin) -> Memory:
        """As it is now."""
        return Memory({name: tensor.detach().clone() for name, tensor in twin.state_dict().items()})

    def load(self, twin: Twin) -> None:
        """Bring a twin back to it."""
        twin.load_state_dict(self.state)


@dataclass(frozen=True)
class Found:
    """Where an earlier attempt stood."""

    epoch: int
    steps: int
    epochs: list[dict[str, Any]]
    best_epoch: int
    best: Memory
    lowest_epoch: int
    lowest: Standing
    budget: tuple[int, End] | None
    spent_seconds: float


class Keeper:
    """Checkpoints of one training: after each epoch, unless epochs are so short that saving would slow them down.

    Args:
        store: of the run.
        twin: whose state it is.
    """

    def __init__(self, store: CheckpointStore, twin: Twin) -> None:
        self._store, self._twin = store, twin
        self._pace = Pace(_MOST_TIME)

    def save(
        self,
        optimizer: torch.optim.Optimizer,
        oscillations: Mapping[str, Oscillations],
        epochs: list[TrainingEpoch],
        kept: tuple[int, Memory],
        lowest: tuple[int, Standing],
        spent: tuple[tuple[int, End] | None, float],
    ) -> None:
        """Keep the state after an epoch, what is best so far, the fixed number of steps and the seconds spent."""
        if not self._store.is_kept or not self._pace.is_due:
            return
        began = time.monotonic()
        (number, memory), (lowest_epoch, standing) = kept, lowest
        facts = {
            "epochs": [entry.model_dump(mode="json") for entry in epochs],
            "best_epoch": number,
            "lowest_epoch": lowest_epoch,
            "lowest": {
                "loss": standing.loss,
                "metric": standing.metric,
                "evidence": document_of(standing.evidence),
                "losses": standing.losses,
            },
            "budget": spent[0],
            "spent_seconds": spent[1],
        }
        arrays: Arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        arrays |= {f"now\n{name}": _array(tensor) for name, tensor in self._twin.state_dict().items()}
        arrays |= {f"best\n{name}": _array(tensor) for name, tensor in memory.state.items()}
        for place, state in optimizer.state_dict()["state"].items():
            arrays |= {f"moves\n{place}\n{key}": _array(value) for key, value in state.items() if value is not None}
        for name, one in oscillations.items():
            arrays |= {f"jumps\n{name}\n{key}": array for key, array in one.state().items()}
        self._store.save(_KEY, pack(arrays))
        self._pace.spent(began)

    def load(self, optimizer: torch.optim.Optimizer, oscillations: Mapping[str, Oscillations]) -> Found | None:
        """Bring twin, optimizer and oscillations to where an earlier attempt stood; None if there was none."""
        arrays = self._store.load_as(_KEY, unpack)
        if arrays is None:
            return None
        facts = json.loads(arrays["facts"].tobytes())
        device = next(self._twin.parameters()).device
        Memory(_tensors(arrays, "now\n", device)).load(self._twin)
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
        lowest = facts["lowest"]
        epochs = facts["epochs"]
        budget = facts["budget"]
        return Found(
            epoch=epochs[-1]["epoch"],
            steps=epochs[-1]["steps"],
            epochs=epochs,
            best_epoch=facts["best_epoch"],
            best=Memory(_tensors(arrays, "best\n", device)),
            lowest_epoch=facts["lowest_epoch"],
            lowest=Standing(
                lowest["loss"],
                lowest["metric"],
                Evidence.from_document(lowest["evidence"]),
                tuple(lowest["losses"]),
            ),
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
