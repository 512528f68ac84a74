"""The state of one pass that undoes quantization: what integers stand for, and what was put in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import hand_on
from worker.quantizer.graph.values import Names, add_initializer, constant, input_of, name_of, node_name
from worker.quantizer.preparation.affine import Signs
from worker.quantizer.preparation.passes.dequantizing.stored import (
    StoredConstant,
    constant_of,
    dequantized,
    granularity_of,
    holds_integers,
    stored,
)

FOREIGN_INTEGERS = declare("foreign-integers", "it reads integers that are neither constant nor of a QuantizeLinear")
INTEGERS_ARE_OUTPUT = declare("integers-are-output", "its integers are the model's output {output!r}")
INTEGERS_COMPUTED_ON = declare("integers-computed-on", "it computes on the integers of node {maker!r}")
OTHER_PARAMETERS = declare("other-parameters", "its scale or zero_point is not that of node {maker!r}")
SCALES_DO_NOT_FIT = declare("scales-do-not-fit", "the shape of its scales does not fit that of its integers")
SCALES_NOT_CONSTANT = declare("scales-not-constant", "a scale or zero_point that has to be known is computed")

DOMAINS = ("", "ai.onnx", "com.microsoft")
_SIX_TOLERANCE = 1e-4
# What quantizers append to the name of a weight.
_SUFFIXES = ("_quantized", "_int8", "_Q4", "_Q8")


@dataclass(frozen=True)
class Integers:
    """What integers stand for: (integers - zero_point) * scale is ``real``, but for rounding."""

    real: ir.Value  # the float tensor
    scale: ir.Value | None  # of the integers
    zero_point: ir.Value | None  # None for 0
    maker: str  # name of the node that made the integers
    axis: int = 1  # that the scales lie along
    block_size: int = 0  # elements that share a scale along ``axis``, 0 for all or one
    whole: bool = False  # one scale holds for the whole tensor, whatever is known of its shape

    @property
    def one_scale(self) -> bool:
        """True if the whole tensor is known to share a scale."""
        shape = None if self.scale is None else self.scale.shape
        return self.whole or (not self.block_size and shape is not None and all(length == 1 for length in shape.dims))

    def same(self, scale: ir.Value | None, zero_point: ir.Value | None) -> bool:
        """True if integers with these parameters stand for the same."""
        return equal(self.scale, scale) and equal(self.zero_point, zero_point)


@dataclass(frozen=True)
class Product:
    """An integer product that still has to be multiplied by the scales of its operands."""

    node: ir.Node  # MatMulInteger or ConvInteger
    # two, at least one not constant; a constant one, or rows of one, with its zero point
    operands: tuple[Integers | tuple[StoredConstant, np.ndarray | None], ...]
    waiting: tuple[ir.Value, ...]  # scales of the operands that are not constant
    factors: tuple[np.ndarray, ...] = ()  # constants that it was multiplied by, in order

    @property
    def maker(self) -> str:
        """Name of the node that made it."""
        return node_name(self.node)


# True: the node is undone; False: it has nothing to do with quantization; a reason: it cannot be undone.
Found = bool | Reason
Form = Callable[[ir.Node, "Undoing"], Found]


class Undoing:
    """Meanings, names, counts, and why something could not be undone.

    Args:
        model: named; changed in place.
    """

    def __init__(self, model: ir.Model) -> None:
        self.reasons: dict[str, Reason] = {}
        self.counts: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()
        self.graph = model.graph
        self.signs = Signs()
        self._names = Names(model.graph)
        self._meanings: dict[ir.Value, Integers | Product] = {}
        self._constants: dict[Hashable, ir.Value] = {}
        self._wanted: dict[ir.Value, str] = {}
        self._lookups: dict[Hashable, ir.Value] = {}
        self._reused: set[str] = set()
        self._made: set[ir.Value] = set()

    def meaning(self, value: ir.Value | None) -> Integers | Product | None:
        """What the integers of ``value`` stand for, None where that is not known."""
        return None if value is None else self._meanings.get(value)

    def integers(self, value: ir.Value | None) -> Integers | None:
        """The same, of quantized floats alone."""
        found = self.meaning(value)
        return found if isinstance(found, Integers) else None

    def give(self, value: ir.Value, meaning: Integers | Product) -> None:
        """Say what the integers of ``value`` stand for."""
        self._meanings[value] = meaning
        if value.is_graph_output():
            self.reasons[meaning.maker] = INTEGERS_ARE_OUTPUT(output=value.name)

    def computed_on(self, node: ir.Node) -> Found:
        """A reason for a node that computes on integers, though nothing is known of it."""
        found = next((meaning for value in node.inputs if (meaning := self.meaning(value)) is not None), None)
        return False if found is None else INTEGERS_COMPUTED_ON(maker=found.maker)

    def operand(self, node: ir.Node, k: int, *, axis: int = 1) -> ir.Value | Reason:
        """The floats of an operand that is given as integers, scale and zero point.

        Args:
            node: reads it.
            k: index of the integers among the inputs.
            axis: that scales lie along, if there are several.
        """
        value, scale, zero_point = (input_of(node, k + j) for j in range(3))
        known = self.integers(value)
        if known is not None:
            fits = known.same(scale, zero_point) and (known.one_scale or (known.axis == axis and not known.block_size))
            return known.real if fits else OTHER_PARAMETERS(maker=known.maker)
        held = stored(value)
        if held is None or not holds_integers(held.array.dtype):
            return FOREIGN_INTEGERS()
        scales, zeros = constant_of(scale), constant_of(zero_point)
        if scales is None or (zero_point is not None and zeros is None):
            return SCALES_NOT_CONSTANT()
        granularity = granularity_of(held.array.shape, np.atleast_1d(scales), axis)
        if granularity is None or (held.lookup is not None and scales.size != 1):
            return SCALES_DO_NOT_FIT()
        if zeros is not None and zeros.size not in (1, scales.size):
            return SCALES_DO_NOT_FIT()
        key = (held.key, id(scale), id(zero_point), axis)
        array = held.array
        made = self.weight(stem_of(value, held), key, lambda: dequantized(array, scales, zeros, granularity))
        return made if held.lookup is None else self.gathered(node, held.lookup, made)

    def weight(self, stem: str, key: Hashable, compute: Callable[[], np.ndarray]) -> ir.Value:
        """An initializer of the main graph, made once for every ``key``."""
        if key not in self._constants:
            for suffix in _SUFFIXES:
                stem = stem.removesuffix(suffix)
            made = self._constants[key] = add_initializer(self.graph, self._names.free(stem), compute())
            self._wanted[made] = stem
            self.counts["constants"] += 1
        return self._constants[key]

    def name_weights(self) -> None:
        """Give floats the names of the integers that they were made of, where those have gone."""
        names = Names(self.graph)
        for value, wanted in self._wanted.items():
            if value.name != wanted and wanted not in self.graph.initializers and names.free(wanted) == wanted:
                value.name = wanted

    def small(self, stem: str, array: np.ndarray) -> ir.Value:
        """An initializer of the main graph for a limit, a shape, a bias."""
        return add_initializer(self.graph, self._names.free(stem), array)

    def put(
        self,
        old: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr | int | float | Sequence[int]] | Iterable[tuple[str, ir.Attr]] = (),
        *,
        name: str | None = None,
    ) -> ir.Node:
        """A node on floats before ``old``, whose name it takes unless it is given another; as many outputs."""
        node = ir.node(
            op_type,
            list(inputs),
            attributes=dict(attributes),
            num_outputs=1 if name else len(old.outputs),
            name=self._names.free(name) if name else node_name(old),
        )
        floats = [one.dtype for one in inputs if one is not None and one.dtype and one.dtype.is_floating_point()]
        for made, twin in zip(node.outputs, old.outputs, strict=False):
            made.name = self._names.free(f"{name_of(twin)}_float") if twin.name else ""
            made.shape = None if twin.shape is None else twin.shape.copy()
            made.dtype = floats[0] if floats else ir.DataType.FLOAT
            self._made.add(made)
        hand_on([old], [node])
        graph = old.graph
        assert graph is not None  # noqa: S101 - it was found in one
        graph.insert_before(old, node)
        self.signs.learn(node)
        if not name:
            self.operators[old.op_type] += 1
        return node

    def quantized(self, node: ir.Node, real: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None) -> bool:
        """Say that what ``node`` makes is ``real`` as integers, behind a Relu or Clip where one is missing."""
        activated = self.activated(node, real, scale, zero_point)
        self.give(node.outputs[0], Integers(activated, scale, zero_point, node_name(node), whole=True))
        return True

    def activated(
        self, node: ir.Node, source: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None
    ) -> ir.Value:
        """``source``, or a Relu or Clip(0, 6) of it if integers of these parameters did what one of them does."""
        maker = source.producer()
        if maker is None or not _begins_at_zero(node, zero_point) or self.signs.never_negative(source):
            return source
        graph = node.graph
        assert graph is not None  # noqa: S101 - it was found in one
        op_type, limits = "Relu", []
        scales, zeros = constant_of(scale), constant_of(zero_point)
        if _ends_at_six(scales, zeros):
            op_type, dtype = "Clip", np.dtype(np.float32) if scales is None else scales.dtype
            limits = [self.small(f"{node_name(node)}_limit", np.array(limit, dtype)) for limit in (0.0, 6.0)]
        made = ir.node(op_type, [source, *limits], name=self._names.free(f"{node_name(maker)}_{op_type}"))
        made.outputs[0].name = self._names.free(f"{name_of(source)}_{op_type}")
        made.outputs[0].type, made.outputs[0].shape = source.type, source.shape
        hand_on([maker], [made])
        graph.insert_before(node, made)
        self.signs.learn(made)
        self._made.add(made.outputs[0])
        self.counts[op_type] += 1
        return made.outputs[0]

    def replace(self, node: ir.Node, replacement: ir.Value, k: int = 0, *, renames: bool = False) -> None:
        """Let ``replacement`` take the place of output ``k`` of ``node``, which goes once nothing reads it.

        Args:
            node: has one output, or is left to die.
            replacement: takes over the name, if it has none but what the pass gave it.
            k: index of the output.
            renames: it takes over the name in any case.
        """
        result, graph = node.outputs[k], node.graph
        assert graph is not None  # noqa: S101 - it was found in one
        maker = replacement.producer()
        if result.is_graph_output():
            name = name_of(result)
            result.name = None
            if maker is None or maker.graph is not graph or replacement.is_graph_output():
                identity = ir.node("Identity", [replacement], name=self._names.free(f"{node_name(node)}_Identity"))
                graph.insert_before(node, identity)
                replacement = identity.outputs[0]
            replacement.name = name
        elif renames or replacement in self._made:  # floats get the name back that they had before they were quantized
            name, result.name = name_of(result), None
            replacement.name = name
        self._made.discard(replacement)
        replacement.type, replacement.shape = replacement.type or result.type, replacement.shape or result.shape
        ir.convenience.replace_all_uses_with(result, replacement, replace_graph_outputs=True)
        if len(node.outputs) == 1:
            graph.remove(node, safe=True)

    def fold(self, node: ir.Node, array: np.ndarray) -> None:
        """Let an initializer under the name of its result take the place of a node with one output."""
        result, graph = node.outputs[0], node.graph
        assert graph is not None  # noqa: S101 - it was found in one
        name = name_of(result)
        result.name = None
        made = add_initializer(graph, name, array)
        ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        self.counts["constants"] += 1

    def gathered(self, node: ir.Node, lookup: ir.Node, table: ir.Value) -> ir.Value:
        """Rows of a table of floats, looked up before ``node`` as ``lookup`` did among integers."""
        key = (lookup, table, node.graph)
        if key not in self._lookups:
            made = self.put(node, "Gather", [table, lookup.inputs[1]], {"axis": 0}, name=f"{node_name(node)}_Gather")
            if node_name(lookup) not in self._reused:
                self._reused.add(node_name(lookup))  # the other one goes
                made.name = node_name(lookup)
            made.outputs[0].type, made.outputs[0].shape = table.type, None
            self.operators["lookup"] += 1
            self._lookups[key] = made.outputs[0]
        return self._lookups[key]

    def look_up(self, node: ir.Node, held: StoredConstant, key: Hashable, compute: Callable[[], np.ndarray]) -> None:
        """Let a lookup in a table of floats take the place of a node that restored what was looked up."""
        lookup = held.lookup
        if lookup is None:
            raise ValueError(f"node {node.name!r} looks nothing up")
        self.replace(node, self.gathered(node, lookup, self.weight(stem_of(lookup.inputs[0], held), key, compute)))


def stem_of(value: ir.Value | None, held: StoredConstant) -> str:
    """Name for the floats of stored integers: that of the table, where rows of one are looked up."""
    found = value if held.lookup is None else held.lookup.inputs[0]
    return name_of(found) if found is not None else "weight"


def equal(one: ir.Value | None, other: ir.Value | None) -> bool:
    """True if two parameters are one value, or equal constants of one type; an absent zero point is 0."""
    if one is other:
        return True
    array, twin = constant_of(one), constant_of(other)
    if one is None or other is None:
        there = array if other is None else twin
        return there is not None and not np.any(there.astype(np.float32))
    if array is None or twin is None or array.dtype != twin.dtype:
        return False
    # one value of rank 0 or 1 is the same one
    return np.array_equal(array, twin) or (array.size == twin.size == 1 and array.item() == twin.item())


def _begins_at_zero(node: ir.Node, zero_point: ir.Value | None) -> bool:
    """True if the lowest integer stands for 0, so that negative values were made 0."""
    if zero_point is None:
        dtype = node.outputs[0].dtype
        return dtype is None or (dtype.is_integer() and not dtype.is_signed())
    array = constant(zero_point)
    if array is None or not holds_integers(array.dtype):
        return False
    return bool(np.all(array == _limits(array.dtype)[0]))


def _ends_at_six(scale: np.ndarray | None, zero_point: np.ndarray | None) -> bool:
    """True if the highest integer of a range that begins at 0 stands for 6."""
    if scale is None or scale.size != 1:
        return False
    low, high = _limits(np.dtype(np.uint8) if zero_point is None else zero_point.dtype)
    return abs(float(scale.reshape(-1)[0]) * (high - low) - 6.0) < 6.0 * _SIX_TOLERANCE


def _limits(dtype: np.dtype) -> tuple[int, int]:
    found = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # numpy's own knows no 4-bit integers
    return int(found.min), int(found.max)
