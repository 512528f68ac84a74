"""A quantized network under construction."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from service.contracts.report import AlgorithmFigures
from worker.quantizer.emit import emit
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.runtime import to_bytes
from worker.quantizer.statistics.collect import Request


@dataclass(frozen=True)
class Draft:
    """A prepared float model with its filled plan. Never changed: a step that changes something makes a new draft.

    Attributes:
        prepared: the float model, as equalized so far.
        plan: with grids and integers.
        statistics: what each algorithm asked for, collected on this float model, by method.
        algorithm: the method that made this draft of the one before; None for calibration alone.
        changed: names of the nodes that it changed.
    """

    prepared: Prepared
    plan: QuantizationPlan
    statistics: dict[str, list[Request]] = field(default_factory=dict)
    algorithm: str | None = None
    changed: tuple[str, ...] = ()

    @property
    def graph(self) -> ir.Graph:
        """The float model's main graph."""
        return self.prepared.graph

    def emitted(self) -> ir.Model:
        """The quantized model, with the interface that the user declared."""
        model = emit(copy_of(self.prepared.model), self.plan)
        self.prepared.restore_interface(model)
        return model

    def emitted_bytes(self) -> bytes:
        """The quantized model, serialized."""
        return to_bytes(self.emitted())


@dataclass(frozen=True)
class Filled:
    """What filling a plan gives.

    Attributes:
        drafts: the calibrated network, then one more for every algorithm that was kept; the last one counts.
        outcomes: what became of each algorithm.
    """

    drafts: list[Draft]
    outcomes: list[AlgorithmFigures] = field(default_factory=list)

    @property
    def draft(self) -> Draft:
        """The one that counts."""
        return self.drafts[-1]
