"""Brings a float model into the form that all later steps rely on.

Afterwards: every node and value has a name, weights are initializers that no caller can override, functions are
inlined, constants are folded, tensors are float32 instead of float16, affine followers are folded into the linear
node before them, and the opset is at least 17 where the model could be lifted. Each pass reports what it did, or why
it did nothing. All passes but ``clip6_to_relu`` and ``dequantize`` keep what the model computes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import onnx_ir as ir

from service.contracts.compatibility import already_quantized_hint, is_quantized_op
from service.contracts.errors import AlreadyQuantizedError, UnsupportedModelError
from service.contracts.preparation import PreparationSpec
from service.contracts.provenance import PREFIX
from service.contracts.reason import declare
from service.contracts.report import PreparationStep
from worker.quantizer.graph.metadata import NodeFacts
from worker.quantizer.graph.rewriting import PassOutcome, PreparationPass, opset_of
from worker.quantizer.graph.values import node_name
from worker.quantizer.preparation.affine import fold_affine
from worker.quantizer.preparation.float16 import float16_to_float32
from worker.quantizer.preparation.layout import announce, four_dimensional_inputs
from worker.quantizer.preparation.passes.activations import fuse_gelu, fuse_hard_sigmoid, fuse_hard_swish
from worker.quantizer.preparation.passes.constants import (
    fold_constants,
    lift_subgraph_weights,
    remove_dead_code,
    unshare_initializers,
)
from worker.quantizer.preparation.passes.dequantize import dequantize
from worker.quantizer.preparation.passes.norms import fuse_instance_norm, fuse_l2_norm, fuse_layer_norm
from worker.quantizer.preparation.passes.opset import LOWEST_OPSET, WANTED_OPSET, lift_opset
from worker.quantizer.preparation.passes.pooling import (
    pads_of_all_axes,
    pads_of_max_pool,
    pools_as_counted,
    reduce_mean_to_global_average_pool,
    split_large_pooling,
)
from worker.quantizer.preparation.passes.replacing import (
    batch_norm_to_conv,
    clip6_to_relu,
    matmul_add_to_gemm,
    sink_conv1d_squeeze,
    split_to_slice,
)
from worker.quantizer.preparation.passes.shapes import (
    first_output,
    fix_shapes,
    infer_shapes,
    inline_functions,
    name_everything,
    repair_shapes,
)

__all__ = ["LOWEST_OPSET", "WANTED_OPSET", "Prepared", "prepare", "undo_quantization"]

SWITCHED_OFF = declare("switched-off", "switched off by preparation.{flag}")
CHANGED_OUTPUTS = declare("changed-outputs", "left out: it changed what the model computes")
SHAPES_CURRENT = declare("shapes-current", "nothing has changed since shapes were inferred")


@dataclass(frozen=True)
class _Step:
    """A pass in the order of preparation; ``flag`` is the field of the spec that turns it on, None for always."""

    name: str
    apply: PreparationPass
    flag: str | None = None


def _switched(apply: PreparationPass) -> _Step:
    """A pass that bears the name of its flag."""
    name = getattr(apply, "__name__", "")
    return _Step(name, apply, flag=name)


def _steps(spec: PreparationSpec, opset: int, lowest_opset: int, subgraph_weights: bool) -> list[_Step]:
    return [
        _Step("inline_functions", inline_functions),
        _Step("name_everything", name_everything),
        _switched(dequantize),
        _Step("repair_shapes", repair_shapes),
        _Step("fix_shapes", partial(fix_shapes, spec=spec)),
        _Step("pools_as_counted", pools_as_counted),
        _Step("float16_to_float32", float16_to_float32),
        _Step("lift_opset", partial(lift_opset, spec=spec, needed=opset, lowest=lowest_opset)),
        _Step("fold_constants", fold_constants),
        _Step("infer_shapes", infer_shapes),
        _Step("pads_of_all_axes", pads_of_all_axes),
        _Step("pads_of_max_pool", pads_of_max_pool),
        _switched(clip6_to_relu),
        _switched(fuse_gelu),
        _switched(fuse_instance_norm),
        _switched(fuse_layer_norm),
        _switched(fuse_l2_norm),
        _switched(fuse_hard_swish),
        _switched(fuse_hard_sigmoid),
        _switched(sink_conv1d_squeeze),
        _Step("matmul_add_to_gemm", matmul_add_to_gemm),
        _Step("fold_affine", fold_affine, flag="fold_batch_norm"),
        _switched(batch_norm_to_conv),
        _switched(reduce_mean_to_global_average_pool),
        _switched(split_large_pooling),
        _switched(split_to_slice),
        _Step("subgraph_weights", partial(lift_subgraph_weights, wanted=subgraph_weights)),
        _switched(unshare_initializers),
        _Step("remove_dead_code", remove_dead_code),
        _Step("infer_final_shapes", infer_shapes),
        _Step("nhwc_input", announce, flag="nhwc_input"),
    ]


@dataclass
class Prepared:
    """A prepared model and what was done to it."""

    model: ir.Model  # the model
    steps: list[PreparationStep] = field(default_factory=list)  # what each pass did
    facts: NodeFacts = field(default_factory=NodeFacts)  # of its nodes
    # of the graph outputs as declared, which shape inference may have made narrower
    output_shapes: list[ir.Shape | None] = field(default_factory=list)
    keeps_function: bool = True  # False if a pass changed what the model computes
    # inputs that are to take NHWC in the emitted model; in this one they take what they took
    nhwc_inputs: tuple[str, ...] = ()

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def op_types(self) -> Mapping[str, str]:
        """Operator of every node by name as the user knows it."""
        return self.facts.op_types

    def known_nodes(self) -> list[tuple[str, str]]:
        """(name, op_type) of every node, sub-graphs included; twice where preparation changed the operator."""
        now = [(node_name(node), node.op_type) for node in self.graph.all_nodes()]
        return [*now, *((name, self.op_types[name]) for name, _ in now if name in self.op_types)]

    def restore_interface(self, model: ir.Model) -> None:
        """Give the outputs of ``model``, emitted from this one, the shapes that the user declared."""
        for value, shape in zip(model.graph.outputs, self.output_shapes, strict=True):
            if shape is not None:
                value.shape = shape


def prepare(
    model: ir.Model,
    spec: PreparationSpec | None = None,
    *,
    opset: int = WANTED_OPSET,
    lowest_opset: int = LOWEST_OPSET,
    subgraph_weights: bool = False,
    without: Collection[str] = (),
) -> Prepared:
    """Prepare ``model``, which is changed or replaced.

    Args:
        model: float model.
        spec: which passes run; the default's if None.
        opset: what the recipe needs; the model is lifted to it where possible, unless the spec asks for another.
        lowest_opset: what the recipe can do with; told where a model cannot be lifted.
        subgraph_weights: weights of sub-graphs are to be quantized, so they move into the main graph.
        without: passes to leave out, for they changed what the model computes.

    Raises:
        AlreadyQuantizedError: the model holds quantized operators; names the first, or with ``spec.dequantize`` the
            first that cannot be made float.
        InvalidConfigError: ``fixed_shapes`` or ``opset`` do not fit the model.
        UnsupportedModelError: the opset is below 13 and cannot be lifted.
    """
    spec = spec or PreparationSpec()
    if not spec.dequantize:
        _refuse_quantized(model)
    prepared = Prepared(model)
    changed = False  # since shapes were inferred last
    for step in _steps(spec, opset, lowest_opset, subgraph_weights):
        off = SWITCHED_OFF(flag=step.flag) if step.flag is not None and not getattr(spec, step.flag) else None
        if step.name == "lift_opset" and step.name in without and (opset_of(prepared.model) or opset) < lowest_opset:
            raise UnsupportedModelError(f"the model has no opset {lowest_opset} unless it is lifted")
        if off is not None or step.name in without:
            prepared.steps.append(PassOutcome(model, off or CHANGED_OUTPUTS()).step(step.name))
            continue
        if step.name == "infer_final_shapes" and not changed:
            outcome = PassOutcome(prepared.model, SHAPES_CURRENT())
        else:
            outcome = step.apply(prepared.model)
        prepared.model = outcome.model
        prepared.facts = prepared.facts.with_op_types(outcome.op_types)
        changed = step.apply is not infer_shapes and (changed or outcome.applied)
        prepared.steps.append(outcome.step(step.name))
        if step.apply is name_everything:
            prepared.facts = NodeFacts({node_name(node): node.op_type for node in prepared.graph.all_nodes()})
        if step.name == "fix_shapes":
            prepared.output_shapes = [value.shape and value.shape.copy() for value in prepared.graph.outputs]
        if step.apply in (clip6_to_relu, dequantize) and outcome.applied:
            prepared.keeps_function = False
        if step.apply is announce:
            prepared.nhwc_inputs = four_dimensional_inputs(prepared.model)
    return prepared


def undo_quantization(model: ir.Model) -> PassOutcome:
    """Make a quantized model float; ``model`` is changed or replaced. What it said of its making holds no longer.

    Raises:
        AlreadyQuantizedError: a quantized operator is left; names the node.
    """
    outcome = dequantize(name_everything(inline_functions(model).model).model)
    entries = outcome.model.metadata_props
    for name in [name for name in entries if name.startswith(PREFIX)]:
        del entries[name]
    return outcome


def _refuse_quantized(model: ir.Model) -> None:
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    nodes = [node for part in parts for node in ir.traversal.RecursiveGraphIterator(part)]
    quantized = [node for node in nodes if is_quantized_op(node.op_type)]
    if not quantized:
        return
    node = quantized[0]
    who = f"node {node.name!r}" if node.name else f"the unnamed node with output {first_output(node)!r}"
    raise AlreadyQuantizedError(
        f"The model is already quantized: {who} is a {node.op_type}.",
        hint=already_quantized_hint(node.op_type for node in quantized),
        node=node.name or None,
        op_type=node.op_type,
    )
