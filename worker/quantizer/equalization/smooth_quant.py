"""SmoothQuant and AWQ as a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import Awq, SmoothQuant
from service.contracts.reason import declare
from service.contracts.specs import ActivationSpec
from worker.quantizer.equalization.channel_scaling import apply_folds
from worker.quantizer.equalization.loud_products import LeftInFloat, MeasuredTensor, leave_loud, loudness
from worker.quantizer.equalization.observed_channels import ObservedTensor, told_by_norms
from worker.quantizer.equalization.smoothing_search import (
    Family,
    ProducingLayer,
    QuantizedMatrix,
    SmoothableTensor,
    SmoothingChoice,
    SmoothingLoss,
    SmoothingProblem,
    activation_and_weight_aware,
    activation_aware,
    find_sites,
    matrix_of,
    search,
    smoothing,
    upstream_grid,
    weight_of,
)
from worker.quantizer.graph.metadata import hand_on
from worker.quantizer.graph.values import Names, add_initializer, constant, name_of, node_name
from worker.quantizer.numerics.integer import PER_TENSOR
from worker.quantizer.ops.linear import is_linear
from worker.quantizer.plan.grids import weight_grid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.affine import replace_constant
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import ChannelExtremes, RowSample

# A site is smoothed if that takes so much of its error away: a Mul costs time at every run, a fold does not.
_WORTH_A_FOLD, _WORTH_A_MUL = 0.02, 0.5
_NAMED_AT_MOST = 5
_ROWS = 512

SCALES_CHANNELS = declare(
    "scales-channels",
    "it scales channels before the quantizer, so that they need less than one range",
    by_design=True,
)
NO_PRODUCT = declare("no-product-to-smooth", "there is no quantized MatMul or Gemm with a constant weight")
ALL_LEFT_ALONE = declare("all-tensors-left-alone", "no tensor could be smoothed")

# Share of the step's time that the search for scales takes; the rest is a new calibration.
_SEARCH = 0.9


class SmoothQuantStep(Step[SmoothQuant | Awq]):
    """Moves scale from activations into weights: how much, ``search`` says, and where it goes, ``find_sites``.

    SmoothQuant makes activations fit their grids; AWQ, where they stay in float, gives the weights that meet the
    largest of them the finest grids.
    """

    def requests(self, draft: Draft) -> list[Request]:
        """Extremes and a sample of rows of every tensor that could be smoothed, or may turn out too loud."""
        found = find_sites(draft.graph, draft.plan, draft.prepared.facts.smoothed)
        sites = [site for site in found if self._refusal(site) is None or self._may_leave(draft)]
        return [
            Request(site.tensor, observer) for site in sites for observer in (ChannelExtremes(), RowSample(rows=_ROWS))
        ]

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The network with scales moved, calibrated anew."""
        model = draft.prepared.model.clone()
        facts, outcome = draft.prepared.facts, SmoothingOutcome()
        run, sites = toolkit.services.run, find_sites(model.graph, draft.plan, facts.smoothed)
        unknown = draft.form.at_run_time is not None and _tells_nothing(toolkit.case)
        seen = {} if unknown else self._seen(draft, toolkit)
        if draft.form.at_run_time is not None and toolkit.case.calibration.is_random:
            seen |= told_by_norms(sites)
        smoother = Smoother(model.graph, draft.plan, seen, unplanned=draft.form.at_run_time)
        for k, site in enumerate(sites):
            run.check()
            run.progress(self.method, k, len(sites), "tensors", site.tensor, share=_SEARCH * k / len(sites))
            refusal = self._refusal(site)
            if refusal is None:
                refusal = smoother.smooth(site, self.spec.alpha, self._families, outcome)
            elif self._may_leave(draft):
                smoother.measure(site, outcome)
            if refusal is not None:
                outcome.left[site.tensor] = refusal
        facts = facts.with_smoothed(outcome.nodes).with_kept_float(dict.fromkeys(outcome.muls, SCALES_CHANNELS()))
        found = LeftInFloat(replace(draft.prepared, model=model, facts=facts), (), "")
        if self._may_leave(draft) and not unknown:
            found = leave_loud(draft, found.prepared, outcome.measured, outcome.scaled, toolkit)
        nodes = tuple(dict.fromkeys([*outcome.nodes, *found.nodes]))
        told = "; ".join(filter(None, [outcome.summary(), found.told]))
        if not nodes:
            return StepResult.nothing(ALL_LEFT_ALONE.saying(told) if outcome.left else NO_PRODUCT())
        changed = toolkit.recalibrate(draft, found.prepared, touched=outcome.scaled)
        return StepResult(changed, nodes, told)

    def _may_leave(self, draft: Draft) -> bool:
        """True if products whose inputs stay loud may compute in float."""
        return isinstance(self.spec, SmoothQuant) and self.spec.loud_in_float and draft.form.at_run_time is not None

    @property
    def _families(self) -> tuple[Family, ...]:
        if isinstance(self.spec, SmoothQuant):
            return (smoothing,)
        return (activation_aware, activation_and_weight_aware) if self.spec.alpha is None else (activation_aware,)

    def _refusal(self, site: SmoothableTensor) -> str | None:
        if site.folding is None and site.refusal is None and not self.spec.insert_mul:
            return "nothing before it can take the scale in, and insert_mul is off"
        return site.refusal

    def _seen(self, draft: Draft, toolkit: Toolkit) -> dict[str, ObservedTensor]:
        seen: dict[str, ObservedTensor] = {}
        for request in draft.statistics[self.method]:
            known = seen.setdefault(request.tensor, ObservedTensor())
            if isinstance(request.observer, ChannelExtremes):
                known.extremes = request.observer.result()
            elif isinstance(request.observer, RowSample):
                known.rows = request.observer.result(toolkit.learning())
        return seen


@dataclass
class SmoothingOutcome:
    """What became of the sites."""

    nodes: list[str] = field(default_factory=list)
    alphas: list[float] = field(default_factory=list)
    takers: Counter[str] = field(default_factory=Counter)
    left: dict[str, str] = field(default_factory=dict)
    scaled: set[str] = field(default_factory=set)
    muls: list[str] = field(default_factory=list)
    measured: list[MeasuredTensor] = field(default_factory=list)

    def summary(self) -> str:
        """One sentence for the report."""
        parts = [f"{len(self.alphas)} of {len(self.alphas) + len(self.left)} tensors smoothed"]
        if self.alphas:
            parts[0] += f", alpha {min(self.alphas):g} to {max(self.alphas):g}"
            parts.append("scale taken in by " + ", ".join(f"{count} {kind}" for kind, count in self.takers.items()))
        for reason, count in Counter(self.left.values()).most_common(_NAMED_AT_MOST):
            parts.append(f"{count} left alone: {reason}")
        return "; ".join(parts)


class Smoother:
    """Smooths site after site of one graph, which is changed in place.

    ``unplanned`` is what becomes of activations that are not in the plan; None: they stay in float.
    """

    def __init__(
        self,
        graph: ir.Graph,
        plan: QuantizationPlan,
        seen: Mapping[str, ObservedTensor],
        *,
        unplanned: ActivationSpec | None = None,
    ) -> None:
        self._graph, self._plan, self._seen, self._unplanned = graph, plan, seen, unplanned
        self._names = Names(graph)
        # Tensor that each node read first, before any Mul came between.
        self._reads = _input_names(graph, 0)
        # What the inputs of layers have been divided by.
        self._scales: dict[ir.Node, np.ndarray] = {}
        # Where the weight of each node stands in the plan, whatever its initializer is called by now.
        self._weights = {node: weight for node, weight in _input_names(graph, 1).items() if weight in plan.weights}

    def smooth(
        self, site: SmoothableTensor, alpha: float | None, families: Sequence[Family], outcome: SmoothingOutcome
    ) -> str | None:
        """Smooth one site; the reason if it is left alone."""
        problem = self._problem(site)
        choice = search(problem, alpha, families) if problem is not None else None
        if problem is None or choice is None:
            return "it is 0 on all calibration data, or was not seen"
        if alpha is None and not _is_worthwhile(choice, site):
            self._note(site, problem, choice.before, outcome)
            return "no alpha makes its layers' error much smaller"
        self._note(site, problem, choice.after, outcome, choice.scale)
        self.put(site, choice.scale, outcome)
        outcome.alphas.append(choice.alpha)
        return None

    def measure(self, site: SmoothableTensor, outcome: SmoothingOutcome) -> None:
        """Say how loud a site is that is left as it is."""
        problem = self._problem(site)
        if problem is not None:
            self._note(site, problem, SmoothingLoss(problem)(np.ones(site.channels)), outcome)

    def _note(
        self,
        site: SmoothableTensor,
        problem: SmoothingProblem,
        noise: float,
        outcome: SmoothingOutcome,
        scale: np.ndarray | None = None,
    ) -> None:
        nodes = tuple(node_name(node) for node in site.consumers)
        outcome.measured.append(MeasuredTensor(nodes, noise, loudness(problem.low, problem.high, scale)))

    def put(self, site: SmoothableTensor, scale: np.ndarray, outcome: SmoothingOutcome) -> None:
        """Divide the site by ``scale``, float64 [channels], and multiply what reads it."""
        scale = site.settled(scale)
        for node in site.consumers:
            along = matrix_of(node).along_inputs(scale)
            array = np.asarray(weight_of(node).astype(np.float64) * along, np.float32)
            replace_constant(self._graph, node, 1, self._weights[node], array, self._names)
            self._scales[node] = scale
        if site.folding is None:
            outcome.muls.append(self._insert_mul(site, scale))
            outcome.takers["Mul of their own"] += 1
        else:
            apply_folds(self._graph, site.folds, 1.0 / scale, self._names)
            kinds = dict.fromkeys(fold.node.op_type for fold in site.folding.folds)
            outcome.takers[" and ".join(kinds)] += 1
            outcome.scaled.update(site.folding.tensors)
        self._plan.spill_initializers(self._graph)
        outcome.nodes += [node_name(node) for node in site.consumers]

    def _problem(self, site: SmoothableTensor) -> SmoothingProblem | None:
        seen = self._seen.get(site.tensor)
        if seen is None or seen.rows is None or seen.extremes is None:
            return None
        low, high = seen.extremes
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        return SmoothingProblem(
            rows=seen.rows,
            low=low,
            high=high,
            spec=self._plan.activations[site.tensor].spec if self._plan.activations else self._unplanned,
            readers=[self._matrix(node) for node in site.consumers],
            makers=self._makers(site),
            rounded=self._rounded(site, seen.rows),
            settle=lambda scale: self._settled(site, scale),
        )

    def _matrix(self, node: ir.Node) -> QuantizedMatrix:
        return QuantizedMatrix(weight_of(node), self._plan.weights[self._weights[node]], matrix_of(node))

    def _makers(self, site: SmoothableTensor) -> list[ProducingLayer]:
        """Layers whose one scale for all channels has to hold the scaled columns."""
        found = []
        for fold in site.folds:
            node = fold.node
            if not is_linear(node) or fold.index != 1 or node not in self._weights:
                continue
            seen, matrix = self._seen.get(self._reads.get(node, "")), self._matrix(node)
            if seen is None or seen.rows is None or matrix.plan.granularity != PER_TENSOR or matrix_of(node).stacked:
                continue
            scale = self._scales.get(node)
            rows = seen.rows if scale is None else np.asarray(seen.rows / scale, np.float32)
            found.append(ProducingLayer(rows, matrix, fold.channels.reshape(-1)))
        return found

    def _rounded(self, site: SmoothableTensor, rows: np.ndarray) -> np.ndarray | None:
        upstream = upstream_grid(self._plan, site)
        if upstream is None:
            return None
        factor, grid = upstream
        nonzero = np.where(factor == 0, np.float32(1), factor)
        return np.asarray(grid.at_run_time().fake(rows / nonzero) * factor)

    def _settled(self, site: SmoothableTensor, scale: np.ndarray) -> np.ndarray:
        """The scale that a constant factor of integers can hold, next to ``scale``."""
        scale = site.settled(scale)
        for fold in site.folds:
            value = fold.node.inputs[fold.index]
            array, entry = constant(value), self._plan.weights.get(name_of(value)) if value is not None else None
            if fold.node.op_type != "Mul" or array is None or entry is None:
                continue
            wanted = fold.scaled(array, 1.0 / scale)
            if wanted.size != scale.size or not wanted.all():
                continue
            held = weight_grid(wanted, entry.spec, entry.granularity).fake(wanted)
            ratio = np.ones(scale.size)
            ratio[np.broadcast_to(fold.channels, wanted.shape).reshape(-1)] = np.where(
                held == 0, 1.0, wanted / np.where(held == 0, 1, held)
            ).reshape(-1)
            scale = scale * ratio
        return scale

    def _insert_mul(self, site: SmoothableTensor, scale: np.ndarray) -> str:
        """Scale the site by a node of its own; returns that node's name."""
        value, first = site.value, site.consumers[0]
        factor = add_initializer(
            self._graph, self._names.free(f"{site.tensor}_smoothing"), np.asarray(1.0 / scale, np.float32)
        )
        mul = ir.node("Mul", [value, factor], name=self._names.free(f"{site.tensor}_Smooth"))
        made = mul.outputs[0]
        made.name, made.dtype = self._names.free(f"{site.tensor}_smoothed"), ir.DataType.FLOAT
        made.shape = value.shape.copy() if value.shape is not None else None
        hand_on([first], [mul])
        self._graph.insert_before(first, mul)
        for node in site.consumers:
            node.replace_input_with(0, made)
        return node_name(mul)


def _tells_nothing(case: Case) -> bool:
    """True if activations on the data say nothing: it is random, and not of tokens, whose embeddings are real."""
    return case.calibration.is_random and any(info.dtype.startswith("float") for info in case.inputs)


def _input_names(graph: ir.Graph, index: int) -> dict[ir.Node, str]:
    """By node: the name of what it reads as input ``index``."""
    values = {node: node.inputs[index] for node in graph if len(node.inputs) > index}
    return {node: name_of(value) for node, value in values.items() if value is not None}


def _is_worthwhile(choice: SmoothingChoice, site: SmoothableTensor) -> bool:
    wanted = _WORTH_A_FOLD if site.folding is not None else _WORTH_A_MUL
    return choice.after < (1.0 - wanted) * choice.before
