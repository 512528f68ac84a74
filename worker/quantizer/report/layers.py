"""The report's table of layers: types, SQNR, share of time, why a node stayed in float; which row a node belongs to."""

from __future__ import annotations

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.report import LayerFigures
from worker.quantizer.emit import Emitted
from worker.quantizer.evaluation.compare import layer_distances
from worker.quantizer.evaluation.side_by_side import NhwcSession
from worker.quantizer.graph import sizes
from worker.quantizer.graph.values import constant, is_constant, name_of, node_name
from worker.quantizer.ops.linear import weight_of
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.refine.draft import Case, Draft, QuantizedDraft
from worker.quantizer.report.histograms import WatchedActivations, weight_histogram
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import SessionSettings, inner_session, is_large
from worker.quantizer.runtime.timing import Kernel, read_profile

# Which row of the report a node of the emitted model, or a kernel that onnxruntime made of it, belongs to.

# Named after a tensor, whose name may begin like a node's.
_BETWEEN_ROWS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# What onnxruntime adds to the name of a node that it fuses or gives another layout; its own inserts have other names.
_ADDED = re.compile(r"(_token_\d+|_nchwc|/MatmulTransposeFusion/.*|/MatMulScaleFusion/.*)$")


class EmittedRows:
    """The emitted model by rows.

    Args:
        row_of: name of the row by name of a node of the prepared graph.
        model: emitted.
    """

    def __init__(self, row_of: Mapping[str, str], model: ir.Model) -> None:
        self._row_of, self._model = row_of, model

    @staticmethod
    def of(rows: Sequence[LayerFigures], model: ir.Model) -> EmittedRows:
        """Those of a finished table."""
        return EmittedRows({node: row.name for row in rows for node in row.nodes}, model)

    @cached_property
    def _emitted(self) -> dict[str, str]:
        """Name of the row by name of an emitted node; one made in the place of a node is called after both."""
        found = {}
        for node in self._model.graph.all_nodes():
            name = node_name(node)
            stem = re.sub(rf"_{re.escape(node.op_type)}(_\d+)?$", "", name)
            row = self._row_of.get(name)
            if row is None and node.op_type not in _BETWEEN_ROWS:
                row = self._row_of.get(stem)
            if row is not None:
                found[name] = row
        return found

    def weight_bytes(self) -> dict[str, int]:
        """Bytes of the constants of each row that has any, scales and zero points included.

        What two rows share counts in either.
        """
        held: dict[str, set[ir.Value]] = {}
        made = _made_of_constants(self._model.graph)
        for node in self._model.graph.all_nodes():
            row = self._emitted.get(node_name(node))
            constants = _constants_of(node, made)
            if row is not None and constants:
                held.setdefault(row, set()).update(constants)
        return {row: sum(stored_bytes(value) for value in values) for row, values in held.items()}

    def latency_percents(self, kernels: Sequence[Kernel]) -> dict[str, float]:
        """Share of each row that a kernel runs for; what runs between rows, such as a change of layout, has none."""
        total = sum(kernel.microseconds for kernel in kernels)
        found: dict[str, float] = {}
        for kernel in kernels:
            row = self._emitted.get(kernel.node) or self._emitted.get(_ADDED.sub("", kernel.node))
            if row is not None and total > 0:
                found[row] = found.get(row, 0.0) + 100.0 * kernel.microseconds / total
        return {row: round(min(100.0, share), 2) for row, share in found.items()}


def stored_bytes(value: ir.Value) -> int:
    """Bytes of an initializer in the file."""
    return 0 if value.const_value is None else int(value.const_value.nbytes)


def _constants_of(node: ir.Node, made: Mapping[ir.Value, frozenset[ir.Value]]) -> set[ir.Value]:
    """Initializers that a node reads, directly or behind nodes that compute with nothing else."""
    found: set[ir.Value] = set()
    for value in node.inputs:
        if value is not None:
            found |= {value} if is_constant(value) else made.get(value, frozenset())
    return found


def _made_of_constants(graph: ir.Graph) -> dict[ir.Value, frozenset[ir.Value]]:
    """By value that is computed from initializers alone: which."""
    made: dict[ir.Value, frozenset[ir.Value]] = {}
    for node in graph.all_nodes():
        read = [value for value in node.inputs if value is not None]
        if read and all(is_constant(value) or value in made for value in read):
            constants = frozenset(_constants_of(node, made))
            made.update(dict.fromkeys(node.outputs, constants))
    return made


NOT_APPLICABLE = declare("not-applicable", "not applicable: its result is {dtypes}", by_design=True)
LEFT_IN_FLOAT = declare("left-in-float", "left in float")
# Rows with histograms, so that the report of a large network stays small.
_MOST_HISTOGRAMS = 64


def layer_figures(
    drafts: Sequence[Draft], quantized: Emitted, case: Case, services: Services
) -> tuple[LayerFigures, ...]:
    """One row per node, or per nodes that run as one: quantized ones by SQNR, worst first, then those left in float,
    then those without floats.

    What an algorithm gained is measured by running the network as it was before it on the same samples; either
    network is compared with the float one that it was made from, which equalization may have changed.

    Args:
        drafts: the calibrated network, then one more per algorithm; the last one is what was emitted.
        quantized: what the last draft was emitted as.
        case: whose data they are measured on.
        services: of the run.
    """
    last = drafts[-1]
    groups = row_groups(last.graph, last.plan)
    watched = WatchedActivations(min(case.config.evaluation.layer_samples, case.measured_on.samples))
    found = _distances(last, quantized, case, services, watched)
    gains: dict[str, dict[str, float]] = defaultdict(dict)
    after = found
    for draft, before in zip(reversed(drafts[1:]), reversed(drafts[:-1]), strict=True):
        without, changed = _distances(before, before.emitted(), case, services), set(draft.changed)
        for name, figure in after.items():
            old, touched = without.get(name), any(node_name(node) in changed for node in groups.get(name, ()))
            if draft.algorithm is not None and figure is not None and old is not None and touched:
                gains[name][draft.algorithm] = round(figure - old, 3)
        after = without
    main = set(last.graph)
    rows = [
        _row(nodes, nodes[0] in main, last.plan, found.get(name), gains.get(name, {})) for name, nodes in groups.items()
    ]
    rows = _with_bytes(rows, last.prepared.model, quantized.model)
    return tuple(_with_histograms(sorted(rows, key=_rank), groups, last.plan, watched))


def row_groups(graph: ir.Graph, plan: QuantizationPlan) -> dict[str, tuple[ir.Node, ...]]:
    """The nodes of each row by its name, that of its first node; every planned node is in one row.

    Nodes are in one row if the plan fuses them; see ``QuantizationPlan.fused``.
    """
    groups: dict[str, tuple[ir.Node, ...]] = {}
    placed: set[ir.Node] = set()
    there = {node_name(node): node for node in graph.all_nodes()}
    for name, entry in plan.nodes.items():
        node = there.get(name)
        if node is None or node in placed:
            continue
        nodes = plan.fused(node) if entry.quantized and node.outputs else (node,)
        groups[name] = tuple(found for found in nodes if found not in placed)
        placed.update(nodes)
    return groups


def hidden_histograms_note(rows: Sequence[LayerFigures]) -> str | None:
    """What to say of quantized rows without histograms; None if all have what there is."""
    quantized = sum(row.reason is None for row in rows)
    if quantized <= _MOST_HISTOGRAMS:
        return None
    return f"histograms are given for the {_MOST_HISTOGRAMS} quantized layers with the lowest SQNR, of {quantized}"


def _with_bytes(rows: Sequence[LayerFigures], prepared: ir.Model, emitted: ir.Model) -> list[LayerFigures]:
    before, after = (EmittedRows.of(rows, model).weight_bytes() for model in (prepared, emitted))
    return [
        row.model_copy(update={"float_weight_bytes": before.get(row.name), "weight_bytes": after.get(row.name)})
        for row in rows
    ]


def _with_histograms(
    rows: Sequence[LayerFigures],
    groups: Mapping[str, tuple[ir.Node, ...]],
    plan: QuantizationPlan,
    watched: WatchedActivations,
) -> list[LayerFigures]:
    """The rows, in their order, the first ones with histograms, as far as they are quantized."""
    made = []
    for k, row in enumerate(rows):
        if k < _MOST_HISTOGRAMS and row.reason is None:
            node = groups[row.name][0]
            weight = weight_of(node)
            planned, values = plan.weights.get((weight and weight.name) or ""), constant(weight)
            result = plan.activations.get(plan.carrier(node).name or "")
            changes = {
                "activation_histogram": watched.histogram(row.name, result.quantization if result else None),
                "weight_histogram": None
                if planned is None or values is None
                else weight_histogram(values, planned.quantization),
            }
            row = row.model_copy(update=changes)
        made.append(row)
    return made


def _distances(
    draft: Draft, quantized: Emitted, case: Case, services: Services, watched: WatchedActivations | None = None
) -> dict[str, float | None]:
    """SQNR in dB by row of the draft, emitted as ``quantized``, against the float model of the same draft."""
    pairs = _pairs(draft.graph, quantized, draft.plan)
    if not pairs:
        return {}
    tensors, twins = (list(dict.fromkeys(names)) for names in zip(*pairs.values(), strict=True))
    reference = inner_session(draft.prepared.model, tensors, threads=services.threads, what="float model")
    twin = inner_session(quantized.model, twins, threads=services.threads, what="quantized model")
    limit = case.config.evaluation.layer_samples
    seen = None if watched is None else watched.see
    return layer_distances(
        replace(case.reference, session=reference), twin, pairs, limit=limit, run=services.run, seen=seen
    )


def _rank(row: LayerFigures) -> tuple[int, bool, float]:
    """Order of the table."""
    if row.reason is None:
        return 0, row.sqnr_db is None, row.sqnr_db or 0.0
    return (2 if row.reason_code == NOT_APPLICABLE.code else 1), False, 0.0


def _pairs(prepared: ir.Graph, quantized: Emitted, plan: QuantizationPlan) -> dict[str, tuple[str, str]]:
    """By quantized row of the main graph: its result there, and what stands for it in the emitted model."""
    main = set(prepared)
    there = {value.name for node in quantized.model.graph for value in node.outputs if value.name}
    pairs = {}
    for name, nodes in row_groups(prepared, plan).items():
        if nodes[0] not in main or not plan.nodes[name].quantized:
            continue
        tensor = name_of(plan.carrier(nodes[0]))
        twin = quantized.restored.get(tensor, tensor)
        if twin in there:
            pairs[name] = (tensor, twin)
    return pairs


def _integer_words(node: ir.Node) -> str | None:
    """The types of a node that is known to make no floats, in words."""
    dtypes = [value.dtype for value in node.outputs if value.name]
    if not dtypes or any(dtype is None or dtype.is_floating_point() for dtype in dtypes):
        return None
    return ", ".join(dict.fromkeys(dtype.name.lower() for dtype in dtypes if dtype is not None))


def _reason(entry: NodePlan, node: ir.Node) -> Reason | None:
    """Why the node stays in float; None if it is quantized."""
    if entry.quantized:
        return None
    integers = _integer_words(node)
    return NOT_APPLICABLE(dtypes=integers) if integers is not None else entry.reason or LEFT_IN_FLOAT()


def _row(
    nodes: Sequence[ir.Node], in_main: bool, plan: QuantizationPlan, sqnr_db: float | None, gain: dict[str, float]
) -> LayerFigures:
    """The row of ``nodes``, which run as one; ``in_main`` if they belong to the main graph."""
    node, entry = nodes[0], plan.nodes[node_name(nodes[0])]
    weight = activation = None
    if entry.quantized:
        value = weight_of(node)
        if value is not None and is_constant(value) and name_of(value) in plan.weights:
            grid = plan.weights[name_of(value)].quantization
            weight = grid.dtype if grid is not None else None
    if entry.quantized and in_main and entry.role is not Role.STORED:
        first = node.inputs[0]
        planned = plan.activations.get(name_of(first)) if first is not None else None
        planned = planned or plan.activations.get(name_of(plan.carrier(node)))
        activation = planned.spec.dtype if planned is not None else None
    reason, inner = _reason(entry, node), entry.activation_reason
    planned_bias = plan.biases.get(entry.name) if entry.quantized else None
    bias = planned_bias.reason if planned_bias is not None else None
    return LayerFigures(
        name=entry.name,
        op="+".join(plan.nodes[node_name(each)].op_type for each in nodes),
        nodes=tuple(node_name(each) for each in nodes),
        weight_dtype=weight,
        activation_dtype=activation,
        sqnr_db=sqnr_db,
        reason=reason.words if reason else None,
        reason_code=reason.code if reason else None,
        activation_reason=inner.words if inner else None,
        activation_reason_code=inner.code if inner else None,
        bias_reason=bias.words if bias else None,
        bias_reason_code=bias.code if bias else None,
        gain=gain,
    )


# Which share of the quantized model's time each row of the report takes, by onnxruntime's profile.

# One of them warms up. A profile has a line per kernel and run, those of a Loop's body times its rounds.
_RUNS, _MOST_SECONDS = 6, 2.0


def with_latency(
    layers: Sequence[LayerFigures], done: QuantizedDraft, case: Case, services: Services
) -> tuple[tuple[LayerFigures, ...], str | None]:
    """The rows with their share of the time of the model as it was written, and why they have none, else None.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    if is_large(done.emitted.model) or done.content.size_bytes > sizes.WEIGHT_BYTES or done.content.path is not None:
        return tuple(layers), "the latency of layers was not measured: the model is too large to profile"
    batch = next(iter(case.reference.batches(1, samples=range(1))))
    nhwc = () if done.plan.is_empty else done.prepared.nhwc_inputs
    with tempfile.TemporaryDirectory(prefix="quantmill-profile-") as folder:
        session = NhwcSession(
            done.content.runnable,
            nhwc,
            threads=services.threads,
            what="quantized model",
            settings=SessionSettings(profile=Path(folder, "profile")),
        )
        begun = time.perf_counter()
        for k in range(_RUNS):
            services.run.check()
            session.run(batch.feeds)
            if k and time.perf_counter() - begun > _MOST_SECONDS:
                break
        kernels = read_profile(session.end_profile())
    shares = EmittedRows.of(layers, done.emitted.model).latency_percents(kernels)
    return tuple(row.model_copy(update={"latency_percent": shares.get(row.name)}) for row in layers), None
