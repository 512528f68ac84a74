"""Rules for any target: how tensors are represented before numbers are known, and grids that move behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from service.contracts.reason import declare
from service.contracts.specs import BiasSpec, NonOverflowCalibration, bits_of, is_integer
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid, PerAxis, fades_in_half, snap_scale
from worker.quantizer.ops.linear import MATRIX_PRODUCTS
from worker.quantizer.plan.grids import integer_grid, judge_biases
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import ActivationPlan, Decision, Role, RuleContext, WeightPlan
from worker.quantizer.statistics.observers import Range


class Groups:
    """Union-find: which names belong together."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """The name that stands for the group of ``name``."""
        root = name
        while (above := self._parent.get(root, root)) != root:
            root = above
        while (above := self._parent.get(name, name)) != root:
            self._parent[name], name = root, above
        return root

    def unite(self, names: Iterable[str]) -> None:
        """Make one group of the groups of ``names``; the first stands for it."""
        first, *others = [self.find(name) for name in names]
        for other in others:
            self._parent[other] = first


def align_concat(context: RuleContext) -> Iterator[Decision]:
    """Widen the grids of all operands and the result of each Concat to one that covers them all."""
    plan, groups, concats = context.plan, Groups(), []
    for node in context.graph:
        if node.op_type == "Concat" and plan.nodes[node_name(node)].role is Role.ARITHMETIC:
            values = [*node.inputs, node.outputs[0]]
            sources = [plan.activations[v.name].source for v in values if v is not None and v.name in plan.activations]
            if len(sources) == len(values):
                groups.unite([sources[-1], *sources[:-1]])
                concats.append((node_name(node), sources))
    members: dict[str, dict[str, IntegerGrid]] = {}
    for _, sources in concats:
        for source in sources:
            grid = plan.activations[source].quantization
            if isinstance(grid, IntegerGrid):
                members.setdefault(groups.find(source), {})[source] = grid
    moved = {}
    for grids in members.values():
        dtypes = {grid.dtype for grid in grids.values()}
        if len(dtypes) > 1:
            why = f"its operands and result have types {', '.join(sorted(dtypes))}"
            yield from [Decision("align_concat", source, "keeps its grid", why, conflict=True) for source in grids]
            continue
        wide = _covering(list(grids.values()), context, next(iter(grids)))
        for source, grid in grids.items():
            if grid.scale != wide.scale or grid.zero_point != wide.zero_point:
                what = f"scale {float(grid.scale):.4g} -> {float(wide.scale):.4g}"
                yield Decision("align_concat", source, what, "operands and result of a Concat share a grid")
                moved[source] = wide
    Parameters(context.graph, plan).move(sources=moved)


def _covering(grids: list[IntegerGrid], context: RuleContext, source: str) -> IntegerGrid:
    """The grid over everything that ``grids`` can hold."""
    ends = [grid.dequantize(np.asarray(grid.limits).astype(grid.zero_point.dtype)) for grid in grids]
    spec = context.plan.activations[source].spec
    first = grids[0]
    if all(grid.scale == first.scale and grid.zero_point == first.zero_point for grid in grids):
        return first
    low, high = min(float(low) for low, _ in ends), max(float(high) for _, high in ends)
    return integer_grid(spec, Range(low, high))


def half_scales(context: RuleContext) -> list[Decision]:
    """Move every scale to the nearest number of 16 bits; weights are quantized anew on what came of it."""
    plan = context.plan
    sources = _moved((entry.source, entry.quantization) for entry in plan.activations.values())
    weights = _moved((name, entry.quantization) for name, entry in plan.weights.items())
    Parameters(context.graph, plan).move(sources=sources, weights=weights)
    if not sources and not weights:
        return []
    what = f"{len(sources)} scales of activations and those of {len(weights)} weights -> float16"
    return [Decision("half_scales", "all grids", what, "pairs next to float16 have scales of that type")]


def _moved(grids: Iterable[tuple[str, Grid | None]]) -> dict[str, IntegerGrid]:
    """Grids with scales of 16 bits, by name, where the scales are others and 16 bits hold them."""
    found = {}
    for name, grid in grids:
        if isinstance(grid, IntegerGrid) and not fades_in_half(grid.scale):
            scale = snap_scale(grid.scale.astype(np.float64), "float16").astype(np.float32)
            if not np.array_equal(scale, grid.scale):
                found[name] = replace(grid, scale=scale)
    return found


# Rules that change how tensors are represented, before any number is known.

BIAS_FLOAT_ON_TARGET = declare("bias-float-on-target", "the target adds biases in float")


def symmetric_int8(context: RuleContext) -> Iterator[Decision]:
    """Integer activations and weights become int8 around 0; 4-bit weights only symmetric. Other types stay."""
    why = "zero_point must be 0, and int8 is the only 8-bit integer"
    yield from _activations(context, "symmetric_int8", why, dtype="int8", symmetric=True)
    for weight in context.plan.weights.values():
        if is_integer(weight.spec.dtype):
            dtype = "int4" if bits_of(weight.spec.dtype) < 8 else "int8"
            yield from _change(weight, "symmetric_int8", why, dtype=dtype, symmetric=True)


def float8_e4m3(context: RuleContext) -> Iterator[Decision]:
    """8-bit floats become float8_e4m3fn."""
    named: list[tuple[str, ActivationPlan | WeightPlan]] = [
        *context.plan.activations.items(),
        *context.plan.weights.items(),
    ]
    for name, entry in named:
        if entry.spec.dtype == "float8_e5m2":
            what, why = "float8_e5m2 -> float8_e4m3fn", "the target has no other 8-bit float"
            yield Decision("float8_e4m3", name, what, why)
            entry.spec = entry.spec.model_copy(update={"dtype": "float8_e4m3fn"})


def xint8(context: RuleContext) -> Iterator[Decision]:
    """Integer tensors become symmetric int8 with one power-of-two scale each. Float and block types stay."""
    why = "the NPU multiplies int8 around 0 and scales by shifting"
    wanted: dict[str, Any] = {"dtype": "int8", "symmetric": True, "scale": "power_of_two", "reduce_range": False}
    yield from _activations(context, "xint8", why, **wanted)
    for weight in context.plan.weights.values():
        if not is_integer(weight.spec.dtype):
            continue
        yield from _change(weight, "xint8", why, granularity="per_tensor", **wanted)
        weight.granularity = PER_TENSOR
        if context.plan.nodes[weight.node].role not in (Role.LINEAR, Role.STORED):
            # one or few values, none of which is an outlier: the nearest power of two could cut off 30 percent
            weight.spec = weight.spec.model_copy(update={"calibration": NonOverflowCalibration()})
    judge_biases(context.graph, context.plan)


def int8_bias(context: RuleContext) -> Iterator[Decision]:
    """Biases become int8 with a grid of their own."""
    for bias in context.plan.biases.values():
        if bias.spec.dtype != "int8":
            what = f"bias {bias.spec.dtype} -> int8"
            yield Decision("int8_bias", bias.node, what, "the NPU stores biases as int8")
            bias.spec = BiasSpec(dtype="int8")
    judge_biases(context.graph, context.plan)


def float_bias(context: RuleContext) -> Iterator[Decision]:
    """Biases stay float32, or the 16-bit floats that were asked for."""
    for bias in context.plan.biases.values():
        if bias.reason is None and not bias.is_half:
            why = "a DequantizeLinear of int32 is refused; biases are added in float"
            yield Decision("float_bias", bias.node, f"bias {bias.spec.dtype} -> float32", why)
            bias.spec, bias.reason = BiasSpec(dtype="float32"), BIAS_FLOAT_ON_TARGET()


def seven_bit_weights(context: RuleContext) -> Iterator[Decision]:
    """int8 weights keep to [-64, 64]: 255 * 64 * 2 fits into 16 bits, 255 * 127 * 2 does not."""
    why = "without VNNI the CPU adds two 8-bit products in 16 bits, which saturates"
    for weight in context.plan.weights.values():
        in_float = context.plan.nodes[weight.node].role is Role.STORED
        if weight.spec.dtype == "int8" and not in_float:
            yield from _change(weight, "x86_without_vnni", why, reduce_range=True)


def unsigned_activations(context: RuleContext) -> Iterator[Decision]:
    """Signed activations become unsigned ones of the same width."""
    for entry in context.plan.activations.values():
        if entry.spec.dtype in ("int8", "int16"):
            dtype = f"u{entry.spec.dtype}"
            why = "QNN's operators take unsigned activations"
            yield Decision("unsigned_activations", entry.tensor, f"{entry.spec.dtype} -> {dtype}", why)
            entry.spec = entry.spec.model_copy(update={"dtype": dtype})


def per_tensor_matmul(context: RuleContext) -> Iterator[Decision]:
    """MatMul and Gemm weights have one scale."""
    op_types = {node_name(node): node.op_type for node in context.graph}
    for weight in context.plan.weights.values():
        if isinstance(weight.granularity, PerAxis) and op_types.get(weight.node) in MATRIX_PRODUCTS:
            why = "QNN has no MatMul with scales per channel"
            yield from _change(weight, "per_tensor_matmul", why, granularity="per_tensor")
            weight.granularity = PER_TENSOR


def _activations(context: RuleContext, rule: str, why: str, **update: Any) -> Iterator[Decision]:
    for entry in context.plan.activations.values():
        if is_integer(entry.spec.dtype):
            yield from _change(entry, rule, why, **update)


def _change(entry: ActivationPlan | WeightPlan, rule: str, why: str, **update: Any) -> list[Decision]:
    """Change fields of an entry's spec, as far as they are not so already."""
    changed = {field: value for field, value in update.items() if getattr(entry.spec, field) != value}
    if not changed:
        return []
    what = ", ".join(f"{field} {getattr(entry.spec, field)} -> {value}" for field, value in changed.items())
    entry.spec = entry.spec.model_copy(update=changed)
    return [Decision(rule, entry.tensor if isinstance(entry, ActivationPlan) else entry.initializer, what, why)]
