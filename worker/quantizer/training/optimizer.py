"""What moves the parameters of a twin, and how fast each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from service.contracts.algorithms.training import Optimizer, Schedule
from worker.quantizer.training.schedule import rate
from worker.quantizer.training.twin import Twin

# Peaks where the config names none: in parts of a weight's size, and for plain gradients as they are.
_ADAM_RATE, _SGD_RATE = 3e-3, 1e-2
# What a parameter of zeros counts for, in parts of the mean size of all.
_LEAST_SIZE = 1e-2
_PEAK = "peak"


def peak_of(spec: Optimizer) -> float:
    """The learning rate of weights at its peak."""
    if spec.learning_rate is not None:
        return spec.learning_rate
    return _SGD_RATE if spec.kind == "sgd" else _ADAM_RATE


@dataclass
class Mover:
    """An optimizer whose learning rates follow a schedule.

    Attributes:
        optimizer: of torch; every group holds its peak.
        schedule: of the config.
        clip: largest norm of all gradients; None: any.
    """

    optimizer: torch.optim.Optimizer
    schedule: Schedule
    clip: float | None

    @staticmethod
    def of(twin: Twin, spec: Optimizer, schedule: Schedule, clip: float | None, learning_rate: float) -> Mover:
        """For all parameters of a twin.

        Adam's steps do not hang on how large gradients are: there weights move by parts of their own size, so that one
        rate serves layers of any scale; the shift of a normalization moves by parts of its standard deviation.

        Args:
            twin: to move.
            spec: kind and knobs.
            schedule: over the training.
            clip: largest norm of all gradients.
            learning_rate: of weights, at its peak.
        """
        groups = list(_groups(twin, spec, learning_rate))
        if spec.kind == "sgd":
            nesterov = spec.momentum > 0
            return Mover(torch.optim.SGD(groups, momentum=spec.momentum, nesterov=nesterov, fused=True), schedule, clip)
        kind = torch.optim.AdamW if spec.kind == "adamw" else torch.optim.Adam
        return Mover(kind(groups, betas=spec.betas, fused=True), schedule, clip)

    def step(self, number: int, total: int) -> float:
        """Move the parameters by their gradients, and forget these; the schedule's factor.

        Args:
            number: of the step, from 0 on.
            total: steps of the training.
        """
        factor = rate(self.schedule, number, total)
        for group in self.optimizer.param_groups:
            group["lr"] = group[_PEAK] * factor
        if self.clip is not None:
            held = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
            nn.utils.clip_grad_norm_(held, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return factor


def _groups(twin: Twin, spec: Optimizer, learning_rate: float) -> Iterator[dict[str, Any]]:
    masters = [values for values in twin.masters.parameters() if values.requires_grad]
    weights = {id(master) for _, master, _ in twin.weight_sites()}
    sizes = [float(values.detach().square().mean().sqrt()) for values in masters]
    usual = sum(sizes) / max(len(sizes), 1) or 1.0
    for values, size in zip(masters, sizes, strict=True):
        unit = 1.0 if spec.kind == "sgd" else max(size, _LEAST_SIZE * usual)
        peak = learning_rate * unit
        # what decays in a step is the learning rate times this, whatever the weight's size
        decay = spec.weight_decay / (unit if spec.kind == "adamw" else 1.0) if id(values) in weights else 0.0
        yield {"params": [values], "lr": peak, _PEAK: peak, "weight_decay": decay}
    for name in twin.norms:
        norm = twin.norms[name]
        for values, measure in ((norm.gamma, norm.gamma), (norm.beta, norm.sigma())):
            size = float(measure.detach().square().mean().sqrt())
            peak = learning_rate if spec.kind == "sgd" else learning_rate * size
            yield {"params": [values], "lr": peak, _PEAK: peak, "weight_decay": 0.0}
    scales = list(twin.scale_parameters())
    peak = learning_rate if spec.scale_learning_rate is None else spec.scale_learning_rate
    if scales:
        yield {"params": scales, "lr": peak, _PEAK: peak, "weight_decay": 0.0}
