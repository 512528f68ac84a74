"""Scales at which the functions that a target has come closest to those of the float model.

A target that has no sigmoid s(x) computes h(x) = clip(x / 6 + 1/2, 0, 1), which is flatter around 0: h(k x) with k near
1.2 is half as far off. The layer that makes x takes k in. Where x is multiplied by the gate, as in a SiLU, k x h(k x)
stands for r x s(x), and the layers that read the product take 1 / r in: nothing is computed that was not computed
before. k and r have the least square error on the calibration samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from service.contracts.costs import held_back_samples
from worker.quantizer.equalization.channel_groups import Flow, follow
from worker.quantizer.equalization.channel_scaling import scale_layers
from worker.quantizer.graph.metadata import StandIn
from worker.quantizer.graph.values import name_of
from worker.quantizer.ops.labels import PINNED, components
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.judge import score_session
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.sampling import SampledValues, WeightedValues

# Values of each operand that the errors are measured on.
_VALUES = 1 << 12
_SCALES = tuple(1.0 + k / 40 for k in range(41))
_BATCH = 8
_FIRST, _REST = slice(None, -1), slice(1, None)


def fit_stand_ins(draft: Draft, unedited: ir.Model, case: Case, services: Services) -> Draft:
    """The draft with such scales, if they bring the outputs closer to the float model's.

    Args:
        draft: planned, without numbers.
        unedited: the prepared model before the target's rules have replaced anything.
        case: with calibration data.
        services: of the run.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    prepared = draft.prepared
    gates = {name for name, found in prepared.facts.stand_ins.items() if found.op_type == "Sigmoid"}
    if not gates:
        return draft
    model = prepared.model.clone()
    flow = follow(model.graph, gates=gates)
    with services.stages.stage("statistics"):
        made = {name_of(value) for node in unedited.graph for value in node.outputs}
        observers = {
            read: SampledValues(_VALUES, case.calibration_samples) for read, _ in flow.gates.values() if read in made
        }
        case.collect(unedited, [Request(name, observer) for name, observer in observers.items()], services)
        seen = {name: found for name, observer in observers.items() if (found := observer.result()).usable}
        scales = fitted_scales(flow, seen)
        if not scales.moved:
            return draft
        scale_layers(model.graph, flow, scales.factors)
        facts = prepared.facts.with_stand_ins(scales.stand_ins)
        changed = replace(prepared, model=model, facts=facts)
        before, after = (_sqnr_db(one, case, services) for one in (prepared, changed))
    if before is not None and (after is None or after <= before):
        return draft
    made_anew = draft.replanned(case.config, changed)
    made_anew.plan_log.note(
        f"{len(scales.moved)} HardSigmoids read their operands times {min(scales.moved):.3g} to "
        f"{max(scales.moved):.3g}, at which they are closest to Sigmoids: before any quantization the outputs have an "
        f"SQNR of {_words(after)}, where it was {_words(before)}"
    )
    return made_anew


def _sqnr_db(prepared: Prepared, case: Case, services: Services) -> float | None:
    session = Session(prepared.model, threads=services.threads, what="prepared model")
    samples = held_back_samples(case.calibration_samples)
    expected = case.expected_outputs(services.run, batch_size=_BATCH, samples=samples)
    return score_session(session, expected, case.metrics, services.run, by_metric=False).score.sqnr_db


def _words(sqnr_db: float | None) -> str:
    return "no finite value" if sqnr_db is None else f"{sqnr_db:.1f} dB"


@dataclass(frozen=True)
class Scales:
    """What is multiplied by what."""

    factors: np.ndarray  # by group of the flow, float64 [groups]
    stand_ins: dict[str, StandIn]  # by gate
    moved: tuple[float, ...]  # scales of the gates' operands that are not 1


def fitted_scales(flow: Flow, seen: Mapping[str, WeightedValues]) -> Scales:
    """Scales of the operands of all gates, and of their products with them.

    All channels of a tensor have one. Those whose factor is 1, or that are limited, keep it; so does the operand of
    which nothing was seen, or whose product keeps its own.
    """
    parts, held = _parts(flow)
    gates = [
        _Gate(name, parts[read], None if made is None else parts[made], seen.get(read))
        for name, (read, made) in flow.gates.items()
    ]
    held |= {gate.read for gate in gates} & {gate.made for gate in gates}  # one scale cannot be both
    held |= {gate.read for gate in gates if gate.seen is None or gate.made in held}
    scales: dict[int, float] = {}
    for part in sorted({gate.read for gate in gates} - held):
        alike = [gate for gate in gates if gate.read == part]
        scales[part] = min(_SCALES, key=lambda k: sum(gate.error(k) for gate in alike))
    reads = {gate.name: scales.get(gate.read, 1.0) for gate in gates}
    for part in sorted({gate.made for gate in gates if gate.made is not None} - held):
        moments = [gate.moments(reads[gate.name]) for gate in gates if gate.made == part and gate.seen is not None]
        power, product = np.sum(moments, axis=0) if moments else (1.0, 1.0)
        scales[part] = float(power / product)
    factors = np.ones(flow.groups)
    for name, part in parts.items():
        factors[np.unique(flow.channels[name])] = scales.get(part, 1.0)
    stand_ins = {
        gate.name: StandIn(
            "Sigmoid",
            reads[gate.name],
            1.0 if gate.made is None else scales.get(gate.made, 1.0) / reads[gate.name],
        )
        for gate in gates
    }
    return Scales(factors, stand_ins, tuple(scale for scale in reads.values() if scale != 1.0))


def _parts(flow: Flow) -> tuple[dict[str, int], set[int]]:
    """A number for each tensor of the gates, alike for those that share a channel's factor; numbers that are held."""
    names = {name for pair in flow.gates.values() for name in pair if name is not None}
    tensors = {name: np.unique(flow.channels[name]) for name in sorted(names)}
    one, other = (np.concatenate([groups[part] for groups in tensors.values()]) for part in (_FIRST, _REST))
    number = components(flow.groups, one, other)
    limited = [np.array([PINNED]), *(limit.channels.reshape(-1) for limit in flow.limits)]
    held = {int(part) for part in number[np.concatenate(limited)]}
    return {name: int(number[groups[0]]) for name, groups in tensors.items()}, held


@dataclass(frozen=True)
class _Gate:
    """A function that stands for a sigmoid."""

    name: str  # of the node
    read: int  # the part that it reads
    made: int | None  # that of the product with what it reads; None: there is none
    seen: WeightedValues | None  # what it reads in the float model; None: nothing is known of it

    def error(self, k: float) -> float:
        """Squared error of the product at its best scale, or of the function, as a part of what is wanted."""
        power, product = self.moments(k)
        if self.made is None:
            return power - 2.0 * product
        return -(product**2) / power if power else 0.0

    def moments(self, k: float) -> tuple[float, float]:
        """<m, m> / <y, y> and <m, y> / <y, y> of what is made and what is wanted, with the operand times ``k``."""
        assert self.seen is not None  # noqa: S101 - the caller looked
        x, weights = self.seen.values.astype(np.float64), self.seen.weights
        made, wanted = np.clip(k / 6.0 * x + 0.5, 0.0, 1.0), 0.5 + 0.5 * np.tanh(0.5 * x)
        if self.made is not None:
            made, wanted = k * x * made, x * wanted
        signal = float(weights @ np.square(wanted)) or 1.0
        return float(weights @ np.square(made)) / signal, float(weights @ (made * wanted)) / signal
