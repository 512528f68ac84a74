"""A graph as a function of torch, node by node, and why a node cannot be computed there with a derivative."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from service.contracts.errors import DeviceNotThereError, NotDifferentiableError
from service.contracts.reason import Reason, declare
from worker.quantizer.autodiff.operators import COMPUTE, STATIC
from worker.quantizer.autodiff.operators.elementwise import TORCH_DTYPES
from worker.quantizer.autodiff.operators.forms import Operator, attributes_of
from worker.quantizer.autodiff.operators.resizing import COORDINATES
from worker.quantizer.graph.rewriting import axis_length, rank_of
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    float_attribute,
    int_attribute,
    name_of,
    node_name,
    plain_attributes,
    string_attribute,
)
from worker.quantizer.ops.windows import PoolPlaces

NOT_IN_TORCH = declare(
    "no-derivative", "there is no derivative of {op_type}", hint="Train with parts of the network that do without it."
)
HAS_BODY = declare("derivative-of-body", "{op_type} has a body, which is not trained through")
NOT_OFFERED = declare("derivative-not-offered", "there is no derivative of {op_type} with {what}")
_SEVERAL_OUTPUTS = frozenset({"Split", "TopK"})


def refusal(node: ir.Node) -> Reason | None:
    """Why a node cannot be trained through; None if it can."""
    if any(each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for each in node.attributes.values()):
        return HAS_BODY(op_type=node.op_type)
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in COMPUTE:
        return NOT_IN_TORCH(op_type=node.op_type)
    what = _LIMITS[node.op_type](node) if node.op_type in _LIMITS else None
    if what is None and (node.op_type in _NOT_EMPTY or node.op_type.startswith("Reduce")) and _is_empty(node):
        what = "an empty tensor"
    if what is None and node.op_type in _OF_FLOATS and not _has_floats(node):
        what = "integers"
    if (
        what is None
        and node.op_type not in _SEVERAL_OUTPUTS
        and any(v.uses() or v.is_graph_output() for v in node.outputs[1:])
    ):
        what = "more than one output"
    return None if what is None else NOT_OFFERED(op_type=node.op_type, what=what)


def _is_empty(node: ir.Node) -> bool:
    """True if an input is known to have no elements: the runtime's results are then no rule to go by."""
    read = [value for value in node.inputs[: _NOT_EMPTY.get(node.op_type, 1)] if value is not None]
    return any(value.shape is not None and 0 in value.shape for value in read)


def _has_floats(node: ir.Node) -> bool:
    value = node.inputs[0]
    return value is None or value.dtype is None or value.dtype.is_floating_point()


def _pool(node: ir.Node) -> str | None:
    """Windows that are larger than what they move over, or that the runtime cuts, as far as that is known."""
    value = node.inputs[0]
    sizes = [axis_length(value, axis) for axis in range(2, rank_of(value) or 2)] if value is not None else []
    known = tuple(length for length in sizes if length is not None)
    if len(known) < len(sizes):
        return None
    places = PoolPlaces.of(plain_attributes(node), known)
    room = (sum(each) for each in zip(places.size, places.before, places.after, strict=True))
    if any(places.window.reach(k) > length for k, length in enumerate(room)):
        return "windows beyond its input"
    cut = min(places.after, default=0) < 0 and max(places.window.dilations, default=1) > 1
    return "gaps between taps and less space than input" if cut and node.op_type == "AveragePool" else None


def _resize(node: ir.Node) -> str | None:
    coordinates = string_attribute(node, "coordinate_transformation_mode", "half_pixel")
    if coordinates not in COORDINATES:
        return f"coordinate_transformation_mode {coordinates}"
    policy, axes = string_attribute(node, "keep_aspect_ratio_policy", "stretch"), plain_attributes(node).get("axes", ())
    if policy != "stretch" and isinstance(axes, tuple) and min(axes, default=0) < 0:
        return f"keep_aspect_ratio_policy {policy} and negative axes"  # the runtime leaves such axes out of account
    return "antialias" if int_attribute(node, "antialias", 0) else None


def _mean_variance(node: ir.Node) -> str | None:
    """Axes that the tensor does not have, as the default ones are those of images; or that hold one element."""
    axes, rank = plain_attributes(node).get("axes", (0, 2, 3)), rank_of(node.inputs[0])
    if rank is None or not isinstance(axes, tuple):
        return None
    if max(axes, default=0) >= rank:
        return f"axes {axes} of {rank}"
    value = node.inputs[0]
    return "one element" if value is not None and all(axis_length(value, int(axis)) == 1 for axis in axes) else None


def _dropout(node: ir.Node) -> str | None:
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    known = constant(mode)
    return None if mode is None or (known is not None and not known.any()) else "training_mode"


def _offered_type(node: ir.Node, name: str) -> str | None:
    kind = ir.DataType(int_attribute(node, name, ir.DataType.FLOAT))
    return None if kind in TORCH_DTYPES else f"type {kind}"


def _offered_value(node: ir.Node) -> str | None:
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.TENSOR:
            kind = attribute.as_tensor().dtype
            if kind not in TORCH_DTYPES or kind == ir.DataType.BFLOAT16:
                return f"type {kind}"
        elif name in ("sparse_value", "value_string", "value_strings"):
            return name
    return None


# Operators whose first inputs, and how many of these, must not be empty; reductions beside them.
_NOT_EMPTY = {"ArgMax": 1, "ArgMin": 1, "BatchNormalization": 1, "Gemm": 2, "Hardmax": 1, "MatMul": 2, "Pad": 1}
_OF_FLOATS = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "Shrink"})
# By operator: what of a node is not offered, None if all of it is.
_LIMITS: dict[str, Callable[[ir.Node], str | None]] = {
    "AveragePool": _pool,
    "BatchNormalization": lambda node: "training_mode" if int_attribute(node, "training_mode", 0) else None,
    "Cast": lambda node: _offered_type(node, "to"),
    "Celu": lambda node: None if float_attribute(node, "alpha", 1.0) else "alpha 0",
    "Constant": _offered_value,
    "ConstantOfShape": _offered_value,
    "Dropout": _dropout,
    "EyeLike": lambda node: _offered_type(node, "dtype"),
    "LRN": lambda node: None if float_attribute(node, "bias", 1.0) else "bias 0",
    "LpPool": _pool,
    "MaxPool": _pool,
    "MeanVarianceNormalization": _mean_variance,
    "Resize": _resize,
}


# A graph as a function of torch: its nodes one after another, each by its operator's form in ``operators``.

# Where torch computes, and how it is kept to one result for one seed.

# Elements of the largest tensor of a step, per thread. Below, threads wait for one another longer than they compute:
# one alone is as fast on an idle machine (ResNet20: 10.9 s of AdaQuant by one, 19.2 s by two), and twice as fast on a
# busy one.
_ELEMENTS_PER_THREAD = 1 << 20


def choose_device(wanted: str) -> torch.device:
    """The device that a config's word stands for.

    Args:
        wanted: auto (a GPU if there is one), cpu, cuda, cuda:N, rocm or rocm:N. ROCm's torch calls its devices cuda.

    Raises:
        DeviceNotThereError: it is not there.
    """
    kind, _, number = wanted.partition(":")
    there = torch.cuda.is_available()
    if kind == "auto":
        return torch.device("cuda" if there else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    is_rocm = torch.version.hip is not None
    if not there or (kind == "rocm") != is_rocm:
        found = "a ROCm device" if there and is_rocm else "a CUDA device" if there else "no GPU"
        raise DeviceNotThereError(
            f"device {wanted!r} is not available: torch {torch.__version__} finds {found}",
            hint="Set device (elsewhere optim_device) to auto or cpu, or run the job on a worker with that GPU.",
        )
    index = int(number or 0)
    if index >= torch.cuda.device_count():
        raise DeviceNotThereError(
            f"device {wanted!r} is not available: torch finds {torch.cuda.device_count()} of this kind",
            hint="Device numbers begin with 0.",
        )
    return torch.device("cuda", index)


def threads_worth(elements: int, threads: int) -> int:
    """How many of ``threads`` pay where the largest tensor of a step has so many elements; follows from both alone."""
    return max(1, min(threads, elements // _ELEMENTS_PER_THREAD))


@contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """``threads`` CPU threads, and GPU kernels that give the same result every time, in full float32."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")  # some containers' environment lowers it
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def as_tensor(array: np.ndarray, device: torch.device, dtype: type = np.float32) -> Tensor:
    """``array`` on ``device``; shares its memory where that can be, so that nobody may write into it."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"])).to(device)


# (reading node, index of its input, value) -> under which name the operand is found while the program runs.
Read = Callable[[ir.Node, int, ir.Value], str]
Made = Callable[[str, Tensor, dict[str, Tensor]], None]
Operand = str | tuple[float, ...] | None


@dataclass(frozen=True)
class _Instruction:
    compute: Callable[..., Any]
    attributes: Mapping[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[str, ...]

    def run(self, known: Mapping[str, Any]) -> tuple[Tensor, ...]:
        operands = [known[operand] if isinstance(operand, str) else operand for operand in self.operands]
        made = self.compute(self.attributes, *operands)
        return made if isinstance(made, tuple) else (made,)


class Program:
    """What ``graph`` computes up to ``wanted``, in torch.

    Args:
        graph: prepared main graph.
        nodes: that may run, in topological order; what they read of others is given to every call. None: all.
        wanted: names of tensors; None: the graph's outputs.
        device: where constants live.
        operators: forms of the operators: with their true derivatives, or ``COMPUTE_INWARD``.
        read: names the operands; default: by their values.
        named: says under which names the wanted tensors are found in the end; default: their own.

    Raises:
        NotDifferentiableError: a node has no form; names it.
    """

    def __init__(
        self,
        graph: ir.Graph,
        *,
        device: torch.device,
        nodes: Sequence[ir.Node] | None = None,
        wanted: Collection[str] | None = None,
        operators: Mapping[str, Operator] = COMPUTE,
        read: Read = lambda node, index, value: name_of(value),
        named: Callable[[str], str] = lambda name: name,
    ) -> None:
        self.wanted = tuple(name_of(value) for value in graph.outputs) if wanted is None else tuple(wanted)
        nodes = _needed(graph if nodes is None else nodes, self.wanted)
        _check(nodes)
        self.constants: dict[str, Tensor] = {}  # by name: initializers that instructions read, on ``device``
        self._device, self._operators = device, operators
        self._found = {name: named(name) for name in self.wanted}
        self._instructions: list[_Instruction] = []
        for node in nodes:
            self._add(node, read)
        used = {value.name for node in nodes for value in node.inputs if value is not None} | set(self.wanted)
        self.inputs = tuple(name for value in graph.inputs if (name := name_of(value)) in used)
        for name in self.wanted:
            held = graph.initializers.get(name)
            if held is not None and (array := constant(held)) is not None:
                self.constants[name] = _constant_tensor(array, device)

    def __call__(self, given: Mapping[str, Tensor], made: Made | None = None) -> dict[str, Tensor]:
        """Run it.

        ``given`` are inputs by name, and operands that ``read`` has named otherwise. ``made`` is called with every
        tensor that a node has made, and with all that is known, to which it may add. Returns the wanted tensors by
        name.
        """
        known: dict[str, Any] = {**self.constants, **given}
        for step in self._instructions:
            for name, tensor in zip(step.results, step.run(known), strict=False):
                known[name] = tensor
                if made is not None:
                    made(name, tensor, known)
        return {name: known[found] for name, found in self._found.items()}

    def move(self, device: torch.device) -> None:
        """Let constants live on another device."""
        self._device = device
        self.constants = {name: tensor.to(device) for name, tensor in self.constants.items()}

    def _add(self, node: ir.Node, read: Read) -> None:
        """Append a node's instruction; what hangs on constants alone, such as shapes, is computed once and for all."""
        step = self._instruction(node, read)
        if step.results and all(operand in self.constants for operand in step.operands if isinstance(operand, str)):
            with torch.no_grad():
                made = step.run(self.constants)
            self.constants.update(zip(step.results, made, strict=False))
        else:
            self._instructions.append(step)

    def _instruction(self, node: ir.Node, read: Read) -> _Instruction:
        operands = tuple(
            None if value is None or not value.name else self._operand(node, index, value, read)
            for index, value in enumerate(node.inputs)
        )
        results = tuple(value.name or "" for value in node.outputs)
        return _Instruction(self._operators[node.op_type], attributes_of(node), operands, results)

    def _operand(self, node: ir.Node, index: int, value: ir.Value, read: Read) -> Operand:
        array = constant(value)
        if array is None and value.name in self.constants:
            array = self.constants[value.name].cpu().numpy()  # computed of constants
        if array is not None and index in STATIC.get(node.op_type, ()):
            return tuple(np.asarray(array).reshape(-1).tolist())
        name = read(node, index, value)
        if array is not None and name == value.name and name not in self.constants:
            self.constants[name] = _constant_tensor(array, self._device)
        return name


def refusals(graph: ir.Graph, wanted: Collection[str]) -> list[tuple[ir.Node, Reason]]:
    """The nodes that ``wanted`` hangs on and that have no form, and why."""
    return _refused(_needed(graph, wanted))


def _refused(nodes: Iterable[ir.Node]) -> list[tuple[ir.Node, Reason]]:
    return [(node, why) for node in nodes if (why := refusal(node)) is not None]


def _check(nodes: Iterable[ir.Node]) -> None:
    """Make sure that every node has a form.

    Raises:
        NotDifferentiableError: names the first that has none, and why.
    """
    refused = _refused(nodes)
    if refused:
        node, why = refused[0]
        more = f", and {len(refused) - 1} more nodes" if len(refused) > 1 else ""
        raise NotDifferentiableError(
            f"node {node_name(node)!r} ({node.op_type}) cannot be trained through: {why.words}{more}",
            hint="Let the loss read tensors before it (losses: distillation, outputs or tensors), or remove qat.",
            node=node_name(node),
            op_type=node.op_type,
        )


def _needed(nodes: Iterable[ir.Node], wanted: Collection[str]) -> list[ir.Node]:
    """Those of the nodes that ``wanted`` hangs on, in order."""
    producers = {value.name: node for node in nodes for value in node.outputs}
    found: set[ir.Node] = set()
    waiting = [producers[name] for name in wanted if name in producers]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        waiting += [producers[value.name] for value in node.inputs if value is not None and value.name in producers]
    return [node for node in nodes if node in found]


def _constant_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    if array.dtype == np.float32:
        return as_tensor(np.array(array), device)
    return torch.from_numpy(np.array(array)).to(device)
