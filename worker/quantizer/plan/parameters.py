"""Where a parameter lives: what its value is now, and how another one is written down.

A parameter is a constant that a node reads: a weight, a bias, the scale of a normalization, a term of an addition. The
float network has it as an array. The plan may hold another array in its place, and it may hold integers on a grid. A
bias of int32 lies on the scale of its input times that of its weight: whoever moves one of these here moves the bias.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from worker.quantizer.graph.mapped import forget
from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import IntegerGrid, PerBlock, fades_in_half, integer_limits
from worker.quantizer.ops.linear import RECURRENT_WEIGHTS, is_recurrent, linear_view
from worker.quantizer.plan.grids import (
    BIAS_NEEDS_INTEGER_INPUT,
    counted,
    own_bias_grid,
    product_grid,
    raised_for_bias,
    weight_grid,
)
from worker.quantizer.plan.types import ActivationPlan, BiasPlan, QuantizationPlan, Role, WeightPlan


@dataclass(frozen=True)
class Parameter:
    """A parameter as it is now."""

    original: np.ndarray  # float32: in the float network
    # float32, same shape: ``original``, or what an algorithm has put in its place; without integers this is what is
    # rounded to the grid
    values: np.ndarray
    # None: the quantized network has it in float. 16-bit floats count as such: they are rounded when they are written.
    grid: Grid | None = None
    integers: np.ndarray | None = None  # on an integer grid; those of a bias are flat
    scale: str = "float32"  # kind of scale that its grid keeps to

    @property
    def present(self) -> np.ndarray:
        """float32, in the shape of ``original``: what the quantized network computes with."""
        if self.grid is None:
            return self.values
        if isinstance(self.grid, IntegerGrid) and self.integers is not None:
            return self.grid.dequantize(self.integers).reshape(self.original.shape)
        return self.grid.fake(self.values)

    @property
    def unrounded(self) -> np.ndarray:
        """float32, in the shape of ``original``: what ``present`` was rounded from, as far as that is known."""
        if self.integers is None or not isinstance(self.grid, IntegerGrid):
            return self.values
        rounded = self.grid.quantize(self.values.reshape(self.integers.shape))
        return self.values if np.array_equal(rounded, self.integers) else self.present


class Parameters:
    """The parameters of a network as its plan has them: a view, which knows nothing but what stands there.

    The plan is changed in place by whatever writes.
    """

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan) -> None:
        self._graph = graph
        self.plan = plan

    def of(self, node: ir.Node, index: int) -> Parameter | None:
        """What a node reads as input ``index``; None if that is no constant."""
        value = node.inputs[index] if len(node.inputs) > index else None
        array = constant(value)
        if value is None or array is None:
            return None
        return self._parameter(name_of(value), array, self._entry(node, index))

    def weight(self, initializer: str) -> Parameter:
        """A planned weight, or a constant operand that is stored like one."""
        return self._parameter(initializer, self._array(initializer), self.plan.weights[initializer])

    def is_stored(self, node: ir.Node, index: int) -> bool:
        """True if a node reads input ``index`` from a planned weight: a weight, a slope, a term, a table; no limit."""
        entry = self.plan.nodes.get(node_name(node))
        role = entry.role if entry is not None else None
        if role is Role.ARITHMETIC:
            return True
        if role is Role.LOOKUP:
            return index == 0
        if role is Role.STORED and is_recurrent(node):
            return index in RECURRENT_WEIGHTS
        return index == 1 and (role in (Role.LINEAR, Role.STORED) or (role is not None and node.op_type == "PRelu"))

    def fill(self, *, threads: int = 1) -> list[str]:
        """Quantize all weights and biases of a plan whose activations are filled; sentences for the report.

        A weight that has a grid keeps it.
        """
        plan, wide = self.plan, list[str]()
        for weight in (weight for weight in plan.weights.values() if weight.quantization is None):
            array = counted(self._array(weight.initializer), weight, plan)
            weight.quantization = weight_grid(array, weight.spec, weight.granularity, threads=threads)
            if weight.spec.scale == "float16" and fades_in_half(_free_scales(array, weight)):
                weight.spec = weight.spec.model_copy(update={"scale": "float32"})
                weight.quantization = weight_grid(array, weight.spec, weight.granularity, threads=threads)
                wide.append(weight.initializer)
            forget(self._graph.initializers[weight.initializer].const_value)
        raised = {name: self._guard(bias) for name, bias in plan.biases.items()}
        for weight in plan.weights.values():
            if isinstance(weight.quantization, IntegerGrid):
                integers = weight.quantization.quantize(self._array(weight.initializer))
                weight.integers = plan.spilled(integers)
                forget(self._graph.initializers[weight.initializer].const_value)
        for name in plan.biases:
            self.fill_bias(name)
        where = ", ".join(f"{name} ({count})" for name, count in raised.items() if count)
        told = [f"weight scales raised so that the int32 bias fits; node (channels): {where}"] if where else []
        return [*told, f"scales of float32, as float16 would lose them: {', '.join(wide)}"] if wide else told

    def fill_bias(self, node: str) -> None:
        """Quantize the planned bias of a node on the grids that its input and its weight have now."""
        entry = self.plan.biases[node]
        if entry.reason is None and entry.spec.dtype == "int32" and _integer_grid(self._operands(entry)[1]) is None:
            entry.reason = BIAS_NEEDS_INTEGER_INPUT()
        if entry.reason is None and not entry.is_half:
            self._fit_bias(entry, self._array(entry.initializer).reshape(-1))

    def put(self, node: ir.Node, index: int, values: np.ndarray, *, refit: bool = False) -> None:
        """Let the quantized network compute with other values of input ``index`` of a node, rounded to its grid.

        Values are floats, of as many elements. With ``refit`` a grid of the parameter's own is made anew for them.
        """
        entry, name = self._entry(node, index), name_of(node.inputs[index])  # type: ignore[arg-type]
        if isinstance(entry, BiasPlan) and entry.quantization is not None:
            if refit:
                self._fit_bias(entry, values.reshape(-1))
            else:
                entry.integers = entry.quantization.quantize(values.reshape(-1))
            return
        array = values.reshape(self._array(name).shape).astype(np.float32)
        if isinstance(entry, WeightPlan) and entry.quantization is not None:
            grid = weight_grid(array, entry.spec, entry.granularity) if refit else entry.quantization
            if isinstance(grid, IntegerGrid):
                self.put_integers(node, index, grid.quantize(array), grid)
                return
            entry.quantization = grid
        self.plan.moved[name] = self.plan.spilled(array)

    def put_integers(self, node: ir.Node, index: int, integers: np.ndarray, grid: IntegerGrid) -> None:
        """Store a weight as these integers on this grid; biases that hang on the grid keep their values."""
        entry = self.plan.weights[name_of(node.inputs[index])]  # type: ignore[arg-type]
        with self._kept_biases(weights=() if grid is entry.quantization else (entry.initializer,)):
            entry.integers, entry.quantization = self.plan.spilled(integers), grid

    def move(
        self,
        *,
        sources: Mapping[str, IntegerGrid] | None = None,
        weights: Mapping[str, IntegerGrid] | None = None,
        biases: Mapping[str, IntegerGrid] | None = None,
    ) -> None:
        """Put tensors on other grids; parameters keep their values, and so do the biases that hang on the grids.

        ``sources`` are by source, for all activations that share its range; ``weights`` by initializer; ``biases`` by
        node, grids of their own.
        """
        sources, weights = sources or {}, weights or {}
        with self._kept_biases(sources, weights):
            for activation in self.plan.activations.values():
                activation.quantization = sources.get(activation.source, activation.quantization)
            for name, grid in weights.items():
                entry, values = self.plan.weights[name], self.weight(name).unrounded
                entry.quantization, entry.integers = grid, self.plan.spilled(grid.quantize(values))
        for name, grid in (biases or {}).items():
            bias, values = self.plan.biases[name], self._bias(name).unrounded
            bias.quantization, bias.integers = grid, grid.quantize(values.reshape(-1))

    def restore(self, before: QuantizationPlan) -> None:
        """Put back the parameters of ``before``, a copy of the plan."""
        self.plan.weights, self.plan.biases, self.plan.moved = before.weights, before.biases, before.moved

    @contextmanager
    def _kept_biases(self, sources: Collection[str] = (), weights: Collection[str] = ()) -> Iterator[None]:
        """Inside, the grids of these activations and weights move; then the int32 biases on them are rounded anew."""
        hanging = [bias for bias in self.plan.biases.values() if self._hangs_on(bias, sources, weights)]
        values = [self._bias(entry.node).unrounded for entry in hanging]
        yield
        for entry, kept in zip(hanging, values, strict=True):
            self._fit_bias(entry, kept.reshape(-1))

    def _hangs_on(self, entry: BiasPlan, sources: Collection[str], weights: Collection[str]) -> bool:
        """True for a bias on the grid of one of these activations or weights."""
        if entry.spec.dtype != "int32" or entry.integers is None:
            return False
        _, read, weight = self._operands(entry)
        return (read is not None and read.source in sources) or (weight is not None and weight.initializer in weights)

    def _guard(self, entry: BiasPlan) -> int:
        """Raise weight scales so far that an int32 bias cannot overflow; returns the number of channels concerned.

        A bias that stays in float counts as well: onnxruntime makes one of int32 of it if it has one axis.
        """
        node, read, weight = self._operands(entry)
        source = _integer_grid(read)
        if source is None or weight is None or isinstance(weight.granularity, PerBlock):
            return 0
        if entry.spec.dtype != "int32" or entry.reason is not None:
            value, linear = node.inputs[2], linear_view(node)
            array = constant(value) if rank_of(value) == 1 else None
            if array is None or not np.isfinite(array).all() or linear is None or array.size != linear.out_channels:
                return 0
        weight.quantization, count = raised_for_bias(node, weight, source, self._array(entry.initializer))
        return count

    def _fit_bias(self, entry: BiasPlan, values: np.ndarray) -> None:
        """Give a bias its grid, or one of its own that holds ``values``, flat, and round them to it."""
        node, read, weight = self._operands(entry)
        source = _integer_grid(read)
        if weight is None:
            return
        if entry.spec.dtype != "int32":
            entry.quantization = own_bias_grid(values, entry.spec.dtype, weight.spec.scale)
        elif source is not None:
            entry.quantization = product_grid(node, weight, source, values.size)
        else:
            raise EngineError(f"node {entry.node!r}: its input has no grid", node=entry.node)
        entry.integers = entry.quantization.quantize(values)

    def _operands(self, entry: BiasPlan) -> tuple[ir.Node, ActivationPlan | None, WeightPlan | None]:
        """The node of a bias, what it reads, and its weight: on their scales lies a bias of int32."""
        node = self._nodes[entry.node]
        read, weight = ("" if value is None else name_of(value) for value in node.inputs[:2])
        return node, self.plan.activations.get(read), self.plan.weights.get(weight)

    def _parameter(self, initializer: str, array: np.ndarray, entry: WeightPlan | BiasPlan | None) -> Parameter:
        values = self.plan.moved.get(initializer, array)
        if entry is None:
            return Parameter(array, values)
        kind = entry.spec.scale if isinstance(entry, WeightPlan) else "float32"
        return Parameter(array, values, entry.quantization, entry.integers, kind)

    def _array(self, initializer: str) -> np.ndarray:
        array = constant(self._graph.initializers[initializer])
        if array is None:
            raise EngineError(f"parameter {initializer!r} is not constant", tensor=initializer)
        return array

    def _entry(self, node: ir.Node, index: int) -> WeightPlan | BiasPlan | None:
        if self.is_stored(node, index):
            return self.plan.weights.get(name_of(node.inputs[index]))  # type: ignore[arg-type]
        return self.plan.biases.get(node_name(node)) if index == 2 else None

    def _bias(self, node: str) -> Parameter:
        found = self.of(self._nodes[node], 2)
        if found is None:
            raise EngineError(f"node {node!r} has no constant bias", node=node)
        return found

    @cached_property
    def _nodes(self) -> dict[str, ir.Node]:
        return {node_name(node): node for node in self._graph}


def _free_scales(array: np.ndarray, weight: WeightPlan) -> np.ndarray:
    """About the scales that the weight would have in float32."""
    largest: np.ndarray = np.abs(weight.granularity.rows(array)).max(axis=1)
    return largest / max(map(abs, integer_limits(weight.spec.dtype, symmetric=weight.spec.symmetric)))


def _integer_grid(entry: ActivationPlan | None) -> IntegerGrid | None:
    return entry.quantization if entry is not None and isinstance(entry.quantization, IntegerGrid) else None
