"""What the autopilot tries: ways to represent tensors, and chains of algorithms on top of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from service.contracts.algorithms import (
    AdaRound,
    Algorithm,
    BiasCorrection,
    CrossLayerEqualization,
    SmoothQuant,
)
from service.contracts.config import QuantizationConfig
from service.contracts.dtypes import is_integer

Chain = tuple[Algorithm, ...]


@dataclass(frozen=True)
class Basis:
    """One way to represent activations and weights, before any algorithm."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_smaller(self) -> bool:
        """True if weights take fewer bits than the job's config says."""
        return "weight" in self.settings

    def config(self, base: QuantizationConfig) -> QuantizationConfig:
        """``base`` with this basis's settings and without algorithms."""
        document = base.model_dump(mode="json")
        for key, values in self.settings.items():
            document[key] = {**document[key], **values}
        document["algorithms"] = []
        return QuantizationConfig.model_validate(document)


def bases(base: QuantizationConfig, *, smaller: bool) -> list[Basis]:
    """The bases to try, the config's own first.

    Args:
        base: the job's config.
        smaller: 4-bit weights are worth a try.
    """
    found = [Basis("as configured")]
    if not is_integer(base.activation.dtype):
        return found
    for method, settings in (
        ("percentile 99.99", {"method": "percentile", "percentile": 99.99}),
        ("mse", {"method": "mse"}),
    ):
        if base.activation.calibration.model_dump(mode="json").get("method") != settings["method"]:
            found.append(Basis(f"activations by {method}", {"activation": {"calibration": settings}}))
    if smaller and base.weight.dtype in ("int8", "uint8") and base.target in ("onnxruntime_cpu", "onnxruntime_gpu"):
        weight = {"dtype": "int4", "symmetric": True, "granularity": "per_channel", "calibration": {"method": "mse"}}
        found.append(Basis("4-bit weights", {"weight": weight}))
    return found


def chains(graph: ir.Graph) -> list[Chain]:
    """Chains of quick algorithms that suit the network, each to be tried on the best bases."""
    op_types = {node.op_type for node in graph}
    found: list[Chain] = [(BiasCorrection(mode="full"),)]
    if op_types & {"Conv", "ConvTranspose"}:
        found.append((CrossLayerEqualization(), BiasCorrection(mode="full")))
    if op_types & {"MatMul", "Gemm"} and "LayerNormalization" in op_types:
        found.append((SmoothQuant(), BiasCorrection(mode="full")))
    return found


def finetuned(chain: Chain) -> Chain:
    """The chain with the slow step at its end."""
    return (*chain, AdaRound())


def recipe_words(basis: Basis, chain: Chain) -> str:
    """The recipe for a reader."""
    return f"{basis.name}: {' + '.join(algorithm.method for algorithm in chain) or 'calibration alone'}"
