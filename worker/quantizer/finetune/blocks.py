"""What is reconstructed at once, one layer or one residual block, and what became of it. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, name_of, node_name, users
from worker.quantizer.layerwise import is_tunable
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.ops.table import Family, Reconstruction, named
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.run.checkpoint import pack, unpack

NORM_OPERATORS = named(lambda record: record.reconstruction is Reconstruction.NORM)
ACTIVATIONS = named(lambda record: record.reconstruction is Reconstruction.FOLLOWS)
# What a block may hold.
OPERATORS = frozenset(named(lambda record: record.reconstruction is not None))
# Softmax normalizes a row or more, a pool reduces it.
_BY_ELEMENT = named(
    lambda record: (
        record.reconstruction in (Reconstruction.FOLLOWS, Reconstruction.INSIDE)
        and record.family not in (Family.SOFTMAX, Family.GLOBAL_POOL)
    )
)


@dataclass(frozen=True)
class Block:
    """Nodes that are reconstructed together."""

    nodes: tuple[ir.Node, ...]  # in topological order; the first one is where the walk stops
    tuned: tuple[ir.Node, ...]  # those of them whose parameters move
    output: ir.Value  # the tensor that is compared

    @property
    def name(self) -> str:
        """That of the first tuned node."""
        return node_name(self.tuned[0])

    @property
    def inputs(self) -> dict[str, ir.Value]:
        """Tensors that the nodes read from outside, by name."""
        made = {value for node in self.nodes for value in node.outputs}
        read = (value for node in self.nodes for value in node.inputs if value is not None)
        return {name_of(value): value for value in read if value not in made and not is_constant(value)}


@dataclass(frozen=True)
class BlockParameter:
    """A constant of a block that the solver may move."""

    values: np.ndarray  # float32, as the float network has it
    grid: Grid | None  # what it is rounded to; None for one that stays float
    present: np.ndarray  # float32, same shape, as the quantized network has it so far
    # weights are rounded or moved; biases follow where that is asked for; norms are the scales of normalizations, which
    # have no grid
    kind: Literal["weight", "bias", "norm"] = "weight"
    free_scale: bool = False  # the grid's scale may be any number, so that ``update_scales`` concerns it


@dataclass(frozen=True)
class BlockState:
    """A block with its parameters as the plan has them."""

    block: Block  # the nodes, and the tensor that is compared with the float network's
    parameters: Mapping[str, BlockParameter]  # those that may move, by tensor name
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)  # other constants, by tensor name
    # of activations between the nodes, and of the output if it is to be compared behind its grid
    grids: Mapping[str, Grid] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockSamples:
    """What a block reads and should make, on the same calibration samples."""

    quantized: Mapping[str, np.ndarray]  # float32 [samples, ...] by tensor: inputs as the quantized network gives them
    target: np.ndarray  # float32 [samples, ...]: its output in the float network
    # the same of the float network; only needed where ``drop_ratio`` is below 1
    floats: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.target)

    @property
    def largest_elements(self) -> int:
        """Elements of the largest of the arrays, of one sample."""
        return max(array[:1].size for array in (self.target, *self.quantized.values()))


def tunable(node: ir.Node, plan: QuantizationPlan, op_types: Collection[str]) -> bool:
    """True for a quantized linear node with a constant weight, and for a normalization with constant parameters."""
    if node.op_type not in op_types or node.domain not in DEFAULT_DOMAINS:
        return False
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None or not is_constant(value):
        return False
    if node.op_type in NORM_OPERATORS:
        return all(is_constant(other) for other in node.inputs[2:] if other is not None)
    return is_tunable(node, plan)


def single_layers(graph: ir.Graph, plan: QuantizationPlan, op_types: Collection[str]) -> list[Block]:
    """One block per layer: a node to tune, and the activation function that alone reads its result."""
    return [_layer(node, plan) for node in graph if tunable(node, plan, op_types)]


def _layer(node: ir.Node, plan: QuantizationPlan) -> Block:
    nodes = [node]
    while (follower := _follower(nodes[-1], plan)) is not None:
        nodes.append(follower)
        if plan.nodes[node_name(follower)].role is not Role.FUSED:
            break
    return Block(tuple(nodes), (node,), nodes[-1].outputs[0])


def _follower(node: ir.Node, plan: QuantizationPlan) -> ir.Node | None:
    """The activation function, or the limit fused with it, that alone reads what ``node`` makes."""
    value = node.outputs[0]
    readers = users(value)
    if len(readers) != 1 or value.is_graph_output() or readers[0].graph is not node.graph:
        return None
    reader = readers[0]
    fused = plan.nodes[node_name(reader)].role is Role.FUSED
    others = [other for other in reader.inputs if other is not None and other is not value]
    fits = (fused or reader.op_type in ACTIVATIONS) and reader.op_type in OPERATORS and all(map(is_constant, others))
    return reader if fits and reader.domain in DEFAULT_DOMAINS else None


def residual_blocks(graph: ir.Graph, plan: QuantizationPlan, op_types: Collection[str]) -> list[Block]:
    """Residual blocks as one each; layers outside of any, or in one that cannot be computed, by themselves.

    A block is what lies between a tensor that is read more than once and the Add where its branches meet again, with
    the activation function behind the Add (Li et al. 2021, BRECQ, section 3.2).
    """
    single = single_layers(graph, plan, op_types)
    order = {node: k for k, node in enumerate(graph)}
    taken: set[ir.Node] = set()
    found = []
    for join in graph:
        if join.op_type != "Add" or plan.nodes[node_name(join)].role is Role.FUSED:
            continue
        block = _block(join, plan, op_types, order)
        if block is not None and len(block.tuned) > 1 and not taken.intersection(block.nodes):
            taken.update(block.nodes)
            found.append(block)
    found += [block for block in single if not taken.intersection(block.nodes)]
    return sorted(found, key=lambda block: order[block.nodes[0]])


def _block(
    join: ir.Node, plan: QuantizationPlan, op_types: Collection[str], order: Mapping[ir.Node, int]
) -> Block | None:
    first, second = join.inputs[0], join.inputs[1]
    if first is None or second is None or is_constant(first) or is_constant(second):
        return None
    chains = _ancestors(first), _ancestors(second)
    split = next((value for value in chains[1] if value in chains[0]), None)  # where all paths between come from
    if split is None:
        return None
    between = (value for chain in chains for value in chain[: chain.index(split)])
    nodes = {producer for value in between if (producer := value.producer()) is not None}
    inner = [*sorted(nodes, key=lambda node: order[node]), join]
    while (follower := _follower(inner[-1], plan)) is not None and plan.nodes[node_name(follower)].role is Role.FUSED:
        inner.append(follower)
    inside = set(inner)
    for node in inner[:-1]:
        leaves = any(reader not in inside for value in node.outputs for reader in users(value))
        if leaves or any(value.is_graph_output() for value in node.outputs):
            return None
    if not all(node.op_type in OPERATORS and node.domain in DEFAULT_DOMAINS for node in inner):
        return None
    tuned = tuple(node for node in inner if tunable(node, plan, op_types))
    if not tuned:
        return None
    # The walk stops at a tuned node: what comes before the first of them reads the split tensor as well.
    return Block(tuple(inner), tuned, inner[-1].outputs[0]) if inner[0] in tuned else None


def _ancestors(value: ir.Value) -> list[ir.Value]:
    """``value`` and what it is made from, back to where more than one activation goes in."""
    found = [value]
    while (producer := found[-1].producer()) is not None:
        inputs = [each for each in producer.inputs if each is not None and not is_constant(each)]
        if len(inputs) != 1 or producer.op_type == "Add":
            break
        found.append(inputs[0])
    return found


def state_of(block: Block, parameters: Parameters, *, output_grid: bool = False) -> BlockState:
    """The block as the solver takes it, with its parameters as they are now.

    With ``output_grid`` what comes out behind the Q/DQ pair of the output is compared.
    """
    moving: dict[str, BlockParameter] = {}
    constants: dict[str, np.ndarray] = {}
    for node in block.nodes:
        for index, value in enumerate(node.inputs):
            now = parameters.of(node, index)
            if value is None or now is None:
                continue
            found = _to_solve(node, index, now)
            entry = parameters.plan.weights.get(name_of(value))
            if entry is not None and entry.tied is not None:
                found = None  # it has the integers of a table
            if node in block.tuned and found is not None and len(value.uses()) == 1:
                moving[name_of(value)] = found
            else:
                constants[name_of(value)] = now.present
    grids = {}
    for node in block.nodes:
        value = node.outputs[0]
        grid = rounding_grid(value, block.nodes, parameters.plan)
        if grid is not None and (value is not block.output or output_grid):
            grids[name_of(value)] = grid
    return BlockState(block, moving, constants, grids)


def computes_by_rows(nodes: Collection[ir.Node]) -> bool:
    """True if every row along the last axis of what these nodes read makes the same row of what they make.

    Given that all tensors between them and before them have the same rows.
    """
    return all(_computes_by_rows(node) for node in nodes)


def _computes_by_rows(node: ir.Node) -> bool:
    constants = [value for value in node.inputs if value is not None and is_constant(value)]
    ranks = {len(value.shape) if value.shape is not None else None for value in constants}
    if node.op_type == "MatMul":
        return len(constants) == 1 and constants[0] is node.inputs[1] and ranks == {2}
    return node.op_type in _BY_ELEMENT and ranks <= {0, 1}


def rounding_grid(value: ir.Value, readers: Collection[ir.Node], plan: QuantizationPlan) -> Grid | None:
    """The grid on which ``readers`` get ``value`` in the quantized network; None if they get floats."""
    entry = plan.activations.get(name_of(value))
    if entry is None:
        return None
    producer = value.producer()
    if producer is not None and plan.nodes[node_name(producer)].rounds:
        return entry.quantization
    read = any(value in node.inputs and plan.nodes[node_name(node)].rounds for node in readers)
    return entry.quantization if read else None


def _to_solve(node: ir.Node, index: int, now: Parameter) -> BlockParameter | None:
    """What input ``index`` of a node is to the solver; None for a constant that has neither grid nor gradient."""
    if node.op_type in NORM_OPERATORS and index in (1, 2):
        return BlockParameter(now.values, None, now.values, "norm" if index == 1 else "bias")
    if index == 2 and node.op_type in LINEAR:
        return BlockParameter(now.unrounded, now.grid, now.present, "bias")
    if now.grid is None:
        return None
    free = isinstance(now.grid, IntegerGrid) and now.scale == "float32"
    return BlockParameter(now.values, now.grid, now.present, "weight", free_scale=free)


# What became of a block: parameters to write into the plan, and how near they bring its output.

# Why a block is left as it is.
BEYOND_SQUARES = "its values are too large, or too far apart, for their squares to be summed"
NO_VALUES = "it has no values on the calibration data"
_FACTS = "facts"
_KINDS = ("integers", "values", "scales")


@dataclass(frozen=True)
class ParameterResult:
    """A parameter as it will be stored."""

    present: np.ndarray  # float32: what the network computes with
    integers: np.ndarray | None  # on an integer grid
    values: np.ndarray | None  # float32, before any rounding
    scale: np.ndarray | None = None  # float32, if it moved


@dataclass(frozen=True)
class BlockResult:
    """What a solver found."""

    error_before: float  # mean squared error of the output over all samples, before
    error_after: float  # the same with what is given back; never above ``error_before``
    integers: dict[str, np.ndarray] = field(default_factory=dict)  # by weight on an integer grid that is kept changed
    # float32 by any other parameter that moved: biases, norms, weights on grids of floats and blocks
    values: dict[str, np.ndarray] = field(default_factory=dict)
    # float32 by weight whose scale moved, shaped like its grid's
    scales: dict[str, np.ndarray] = field(default_factory=dict)
    iterations: int = 0  # steps taken, by gradients

    @property
    def changed(self) -> bool:
        """True if anything moved."""
        return bool(self.integers or self.values or self.scales)

    def undone(self) -> BlockResult:
        """The same with everything as it was."""
        return replace(self, error_after=self.error_before, integers={}, values={}, scales={})

    def write(self, nodes: Sequence[ir.Node], parameters: Parameters) -> None:
        """Put it into the plan; ``nodes`` are those whose parameters moved."""
        for node in nodes:
            for index, value in enumerate(node.inputs):
                name, now = "" if value is None else name_of(value), parameters.of(node, index)
                if name in self.values:
                    parameters.put(node, index, self.values[name])
                elif name in self.integers and now is not None and isinstance(now.grid, IntegerGrid):
                    grid = replace(now.grid, scale=self.scales[name]) if name in self.scales else now.grid
                    parameters.put_integers(node, index, self.integers[name], grid)

    def to_bytes(self) -> bytes:
        """For a checkpoint: plain arrays."""
        arrays = {f"{kind}/{name}": array for kind in _KINDS for name, array in getattr(self, kind).items()}
        facts = np.array([self.error_before, self.error_after, self.iterations], np.float64)
        return pack({_FACTS: facts, **arrays})

    @staticmethod
    def from_bytes(data: bytes) -> BlockResult:
        """The inverse of ``to_bytes``.

        Raises:
            ValueError: these are other bytes.
            LookupError: likewise.
        """
        arrays = unpack(data)
        before, after, iterations = arrays.pop(_FACTS).tolist()
        found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in _KINDS}
        for full, array in arrays.items():
            kind, _, name = full.partition("/")
            found[kind][name] = array
        return BlockResult(before, after, found["integers"], found["values"], found["scales"], int(iterations))
