"""Where the correction of a linear node's mean can be put: its bias, or a constant that is added right behind it.

Linear nodes that have neither get one of zeros.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import declare
from worker.quantizer.graph.metadata import apart, hand_on
from worker.quantizer.graph.rewriting import Editor, Rewrite, only_reader, other_operand, rank_of
from worker.quantizer.graph.rewriting import replace as replace_nodes
from worker.quantizer.graph.values import constant, float_attribute, is_constant, is_float32, name_of, node_name
from worker.quantizer.layerwise import is_tunable
from worker.quantizer.ops.linear import bias_of, linear_view
from worker.quantizer.plan.grids import float_bias_reason
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import BiasPlan, NodePlan, QuantizationPlan
from worker.quantizer.refine.draft import Draft

NOTHING_ADDED = "nothing constant is added to its result"
PUTS_BACK_THE_MEAN = declare(
    "puts-back-the-mean", "it restores the mean that rounding removed from the output before it", by_design=True
)


@dataclass(frozen=True)
class CorrectableBias:
    """A constant with one value per output channel of a linear node."""

    node: ir.Node  # the linear node
    owner: ir.Node  # the node that reads the constant: the same, or an Add behind it
    index: int  # of the constant among its inputs

    @property
    def initializer(self) -> str:
        """Name of the constant."""
        return name_of(self.owner.inputs[self.index])  # type: ignore[arg-type]

    def of(self, parameters: Parameters) -> Parameter:
        """The constant as it is now."""
        found = parameters.of(self.owner, self.index)
        if found is None:
            raise ValueError(f"{self.initializer!r} is not constant")
        return found

    def add(self, parameters: Parameters, values: np.ndarray, shift: np.ndarray) -> None:
        """Let the quantized network add ``shift``, float64 [channels], to ``values``, what it adds now."""
        corrected = values.reshape(-1).astype(np.float64) + shift
        parameters.put(self.owner, self.index, corrected, refit=True)


def correctable(graph: ir.Graph, plan: QuantizationPlan) -> list[ir.Node]:
    """The quantized linear nodes with a constant weight, in topological order."""
    return [node for node in graph if is_tunable(node, plan)]


def channels_of(node: ir.Node) -> int:
    """Number of output channels of a linear node; 0 for a product with a vector."""
    linear = linear_view(node)
    return 0 if linear is None else linear.out_channels


def find_place(node: ir.Node, plan: QuantizationPlan) -> CorrectableBias | str:
    """Where the correction of ``node`` goes, or why there is no place for it yet."""
    channels = channels_of(node)
    if node.op_type == "MatMul":
        return _term_behind(node, channels)
    bias = bias_of(node)
    if bias is None:
        return "it has no bias"
    array = constant(bias)
    if array is None or not is_float32(bias):
        return "its bias is not constant"
    if not array.ndim or array.size != channels or (array.ndim != 1 and array.shape[-1] != channels):
        return "its bias does not have one value per channel"
    if float_attribute(node, "beta", 1.0) != 1.0:
        return "its bias is multiplied by beta"
    entry = plan.biases.get(node_name(node))
    if (entry is None or entry.integers is None) and len(bias.uses()) > 1:
        return "others read its bias too"
    return CorrectableBias(node, node, 2)


def _term_behind(node: ir.Node, channels: int) -> CorrectableBias | str:
    add, term = _added_behind(node)
    array = constant(term)
    if add is None or term is None or array is None or not is_float32(term):
        return NOTHING_ADDED
    if not array.ndim or array.shape[-1] != channels or array.size != channels:
        return "what is added to its result does not have one value per channel"
    if len(term.uses()) > 1:
        return "others read what is added to its result"
    return CorrectableBias(node, add, list(add.inputs).index(term))


def _added_behind(node: ir.Node) -> tuple[ir.Node, ir.Value] | tuple[None, None]:
    """The Add that alone reads the result of ``node``, on the same side of a border, and the constant that it adds."""
    add = only_reader(node.outputs[0], "Add")
    term = other_operand(add, node.outputs[0]) if add is not None else None
    if add is None or term is None or not is_constant(term) or apart((node, add)):
        return None, None
    return add, term


@dataclass(frozen=True)
class CorrectableBiases:
    """A draft in which corrections have places."""

    draft: Draft  # a new one, with a plan of its own
    found: dict[str, CorrectableBias]  # places by node name, in topological order
    created: dict[str, int] = field(default_factory=dict)  # of how many kinds of new places there are how many
    left: dict[str, str] = field(default_factory=dict)  # reasons by the names of nodes without a place


def make_places(draft: Draft, config: QuantizationConfig, *, insert_add: bool) -> CorrectableBiases:
    """Copy the draft and give its quantized linear nodes a place for their correction.

    A convolution or Gemm without a bias gets one, a MatMul of two matrices becomes a Gemm, where it computes on
    integers, and behind any other MatMul an Add is put, if floats read its result. The network computes what it did.
    """
    plan, prepared = draft.plan.copy(), draft.prepared
    found = _places(draft.graph, plan)
    created: dict[str, int] = {}
    if any(isinstance(place, str) for place in found.values()):
        prepared = replace(prepared, model=prepared.model.clone())
        creator = _Creator(Editor(prepared.model), plan, insert_add=insert_add)
        fresh = [node for node in correctable(prepared.graph, plan) if isinstance(found[node_name(node)], str)]
        for node in fresh:
            what = creator.create(node)
            if what is not None:
                created[what] = created.get(what, 0) + 1
        facts = prepared.facts.with_kept_float(dict.fromkeys(creator.adds, PUTS_BACK_THE_MEAN()))
        prepared = replace(prepared, facts=facts)
        wanted = draft.replanned(config, prepared).plan.biases
        _plan_biases(prepared.graph, creator.with_bias, wanted, plan)
        found = _places(prepared.graph, plan)
    return CorrectableBiases(
        replace(draft, prepared=prepared, plan=plan),
        {name: place for name, place in found.items() if isinstance(place, CorrectableBias)},
        created,
        {name: _reason(place, insert_add=insert_add) for name, place in found.items() if isinstance(place, str)},
    )


def _reason(place: str, *, insert_add: bool) -> str:
    if place != NOTHING_ADDED:
        return place
    return f"{place}, " + ("which is passed on as integers" if insert_add else "and insert_add is off")


def _places(graph: ir.Graph, plan: QuantizationPlan) -> dict[str, CorrectableBias | str]:
    return {node_name(node): find_place(node, plan) for node in correctable(graph, plan)}


def _plan_biases(graph: ir.Graph, names: Collection[str], wanted: dict[str, BiasPlan], plan: QuantizationPlan) -> None:
    parameters = Parameters(graph, plan)
    for node in graph:
        name, weight = node_name(node), node.inputs[1] if len(node.inputs) > 1 else None
        entry = wanted.get(name)
        if name not in names or entry is None or weight is None:
            continue
        bias = BiasPlan(name, entry.initializer, entry.spec)
        bias.reason = entry.reason or float_bias_reason(node, entry.spec, plan.weights[name_of(weight)])
        plan.biases[name] = bias
        parameters.fill_bias(name)


class _Creator:
    """Makes places in one graph, which is changed in place.

    ``with_bias`` are the names of the nodes that have got a bias, ``adds`` those of the Adds put in.
    """

    def __init__(self, editor: Editor, plan: QuantizationPlan, *, insert_add: bool) -> None:
        self._editor, self._graph, self._plan = editor, editor.graph, plan
        self._insert_add = insert_add
        self.with_bias: set[str] = set()
        self.adds: list[str] = []

    def create(self, node: ir.Node) -> str | None:
        """Make a place for ``node``; what was done, None if nothing can be."""
        if node.op_type != "MatMul":
            return self._bias(node)
        add, term = _added_behind(node)
        if add is not None and term is not None:
            return self._term(node, add, term)
        # Runtimes that multiply by packed weights look for a MatMul.
        on_integers = bool(self._plan.activations)
        if on_integers and rank_of(node.inputs[0]) == 2 and rank_of(node.inputs[1]) == 2:
            return self._gemm(node)
        if self._insert_add and name_of(node.outputs[0]) not in self._plan.activations:
            return self._add(node)
        return None

    def _zeros(self, node: ir.Node) -> ir.Value:
        return self._editor.constant(f"{node_name(node)}_bias", np.zeros(channels_of(node), np.float32))

    def _bias(self, node: ir.Node) -> str | None:
        bias = bias_of(node)
        if bias is None:
            node.resize_inputs(3)
            node.replace_input_with(2, self._zeros(node))
            if "beta" in node.attributes:
                node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
            self.with_bias.add(node_name(node))
            return "bias"
        array = constant(bias)
        if array is None or array.size not in (1, channels_of(node)) or len(bias.uses()) == 1:
            return None
        copy = self._editor.constant(f"{name_of(bias)}_of_{node_name(node)}", array)
        node.replace_input_with(2, copy)
        self.with_bias.add(node_name(node))
        return "copy of a shared bias"

    def _term(self, node: ir.Node, add: ir.Node, term: ir.Value) -> str | None:
        """A constant of its own with a value for every channel, if nothing but a scalar or a shared one is added."""
        array, channels = constant(term), channels_of(node)
        fits = array is not None and array.dtype == np.float32 and array.size in (1, channels)
        if (
            array is None
            or not fits
            or name_of(term) in self._plan.weights
            or (array.size > 1 and array.shape[-1] == 1)
        ):
            return None
        index = list(add.inputs).index(term)
        wide = np.broadcast_to(array, (*array.shape[:-1], channels)).copy()  # of a rank that the result may owe to it
        add.replace_input_with(index, self._editor.constant(f"{name_of(term)}_of_{node_name(node)}", wide))
        return "wider or own term"

    def _gemm(self, node: ir.Node) -> str:
        gemm = self._editor.node("Gemm", [node.inputs[0], node.inputs[1], self._zeros(node)], node_name(node))
        replace_nodes(self._graph, Rewrite([node], [gemm], [(node.outputs[0], gemm.outputs[0])]))
        self._plan.nodes[node_name(gemm)].op_type = "Gemm"
        self.with_bias.add(node_name(gemm))
        return "Gemm in place of a MatMul"

    def _add(self, node: ir.Node) -> str:
        """MatMul -> Add, which takes over the name of the result."""
        result = node.outputs[0]
        add = self._editor.node("Add", [result, self._zeros(node)], self._editor.name(f"{node_name(node)}_Add"))
        made, name = add.outputs[0], name_of(result)
        made.shape, made.type = result.shape, result.type
        ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
        add.replace_input_with(0, result)
        result.name = self._editor.name(f"{name}_uncorrected")
        made.name = name
        self.adds.append(node_name(add))
        hand_on([node], [add])
        self._graph.insert_after(node, add)
        self._plan.nodes[node_name(add)] = NodePlan(node_name(add), "Add", None, PUTS_BACK_THE_MEAN())
        return "Add"
