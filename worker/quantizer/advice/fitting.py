"""Keeps advice to what a target can do: what its rules would undo is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.contracts.config import QuantizationConfig, parse_config, patch_between
from service.contracts.errors import InvalidConfigError, UnsupportedModelError
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.search.trials import ModelBuilder

Document = dict[str, Any]
# What the plan is made of; other keys change how its numbers are found.
_PLANNED = ("activation", "weight", "bias", "exclude", "include", "overrides")


@dataclass(frozen=True)
class Fitted:
    """A change of a config that its target takes.

    Attributes:
        config: changed, resolved.
        patch: that makes it of the one before (RFC 7396).
    """

    config: QuantizationConfig
    patch: Document


class Fitting:
    """Judges changes of one config.

    Args:
        config: resolved.
        builder: makes plans.
        run: asked before each plan whether to stop.
    """

    def __init__(self, config: QuantizationConfig, builder: ModelBuilder, run: Run | None = None) -> None:
        self.document: Document = config.model_dump(mode="json")
        self._config, self._builder, self._run = config, builder, run or SilentRun()

    def fit(self, changed: Mapping[str, Any]) -> Fitted | None:
        """The change, if it is one: valid, and not undone by the target's rules; else None.

        Args:
            changed: the whole config as it would be, as a document.
        """
        self._run.check()
        try:
            config = parse_config(changed)
        except InvalidConfigError:
            return None
        resolved = config.model_dump(mode="json")
        if resolved == self.document or config.target != self._config.target:
            return None
        # The short form of what was changed: what it leaves out is a default.
        patch = patch_between(self.document, changed)
        different = {key for key in resolved if resolved[key] != self.document[key]}
        if different <= {*_PLANNED, "tensor_ranges"} and different & set(_PLANNED) and not self._matters(config):
            return None
        return Fitted(config, patch)

    def _matters(self, config: QuantizationConfig) -> bool:
        """True if the plan gets another one."""
        try:
            return _representation(self._builder.planned(config)) != self._before
        except (InvalidConfigError, UnsupportedModelError):
            return False

    @cached_property
    def _before(self) -> Document:
        return _representation(self._builder.planned(self._config))


def _representation(plan: QuantizationPlan) -> Document:
    """How everything is represented, as far as it is known without numbers."""
    return {
        "activations": {name: entry.spec for name, entry in plan.activations.items()},
        "weights": {name: (entry.spec, entry.granularity) for name, entry in plan.weights.items()},
        "biases": {
            name: (entry.spec, None if entry.reason is None else entry.reason.code)
            for name, entry in plan.biases.items()
        },
        "nodes": {name: entry.role for name, entry in plan.nodes.items()},
    }
