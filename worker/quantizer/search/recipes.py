"""What the autopilot tries: ways to represent tensors, and chains of algorithms on top of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from service.contracts.algorithms import AdaRound, Algorithm, BiasCorrection, CrossLayerEqualization, SmoothQuant
from service.contracts.algorithms.training import QuantizationAwareTraining
from service.contracts.base import search_space
from service.contracts.config import QuantizationConfig
from service.contracts.specs import PercentileCalibration, is_integer
from worker.quantizer.ops.linear import CONVOLUTIONS, MATRIX_PRODUCTS

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
    own = base.activation.calibration.model_dump(mode="json")
    percentiles = search_space(PercentileCalibration)["percentile"]
    methods = [(f"percentile {value:g}", {"method": "percentile", "percentile": value}) for value in percentiles]
    for words, settings in (*methods, ("mse", {"method": "mse"})):
        if any(own.get(key) != value for key, value in settings.items()):
            found.append(Basis(f"activations by {words}", {"activation": {"calibration": settings}}))
    if smaller and base.weight.dtype in ("int8", "uint8") and base.target in ("onnxruntime_cpu", "onnxruntime_gpu"):
        weight = {"dtype": "int4", "symmetric": True, "granularity": "per_channel", "calibration": {"method": "mse"}}
        found.append(Basis("4-bit weights", {"weight": weight}))
    return found


def chains(graph: ir.Graph) -> list[Chain]:
    """The quick chains that suit the network: those whose algorithms find something to do. Tried on the best bases."""
    op_types = {node.op_type for node in graph}
    found: list[Chain] = [(BiasCorrection(),)]
    if not op_types.isdisjoint(CONVOLUTIONS):
        found.append((CrossLayerEqualization(), BiasCorrection(mode="full")))
    if not op_types.isdisjoint(MATRIX_PRODUCTS) and "LayerNormalization" in op_types:
        found.append((SmoothQuant(), BiasCorrection()))
    return found


def variants(chain: Chain) -> list[Chain]:
    """The chain with one knob of one algorithm at another of the values that it declares to be worth a try."""
    found = []
    for place, algorithm in enumerate(chain):
        for knob, values in search_space(type(algorithm)).items():
            others = [value for value in values if value != getattr(algorithm, knob)]
            changed = [algorithm.model_copy(update={knob: value}) for value in others]
            found += [(*chain[:place], other, *chain[place + 1 :]) for other in changed]
    return found


def finetuned(chain: Chain) -> Chain:
    """The chain with the slow step at its end."""
    return (*chain, AdaRound())


def trained(chain: Chain, seconds: float) -> Chain:
    """The chain with a training of the whole network at its end.

    Args:
        chain: what comes before.
        seconds: that the training may take.
    """
    return (*chain, QuantizationAwareTraining(seconds=seconds))


def recipe_words(basis: Basis, chain: Chain) -> str:
    """The recipe for a reader: methods, and knobs of the search that are not at their defaults."""
    return f"{basis.name}: {' + '.join(map(_words, chain)) or 'calibration alone'}"


def _words(algorithm: Algorithm) -> str:
    record = type(algorithm)
    turned = [
        str(getattr(algorithm, knob))
        for knob in search_space(record)
        if getattr(algorithm, knob) != record.model_fields[knob].default
    ]
    return f"{algorithm.method} ({', '.join(turned)})" if turned else algorithm.method
