"""What a network is drawn on: tensors with their values, constants, nodes that onnxruntime runs.

Each node is run as it is drawn, by itself: one that onnxruntime refuses does not join, and shapes are known.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

Array = np.ndarray
SAMPLES = 8
OPSETS = range(7, 26)
LARGEST = 4096
SHAPES = [(3, 8, 8), (4, 6, 6), (2, 9, 7), (4, 12), (3, 10), (6,), (16,), (5, 8), (2, 3, 4, 5)]
ODD = ["a b", "x/y", "ü", "1", "a:0", "Relu", ".", "w" * 90, "a\\b", "{}", "%s", "'q'"]


@dataclass
class Parts:
    """Nodes, constants and values so far, and samples for the inputs."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        self.opset = self.chance.choice(OPSETS)
        self.odd = self.chance.random() < 0.2
        self.batch: int | str = "N" if self.chance.random() < 0.75 else 1
        for k in range(self.chance.choice([1, 1, 1, 2])):
            shape = self.chance.choice(SHAPES)
            name = self.name(f"x{k}")
            self.values[name] = self.feeds[name] = self.normal(SAMPLES, *shape)

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.numbers.standard_normal(shape) * scale).astype(np.float32)

    def name(self, stem: str) -> str:
        taken = {*self.values, *self.constants}
        stem = self.chance.choice(ODD) if self.odd and self.chance.random() < 0.5 else stem
        while stem in taken or not stem:
            stem += str(self.chance.randint(0, 9))
        return stem

    def pick(self, rank: int | None = None) -> str:
        """A float tensor, rather one of the last."""
        names = [name for name, value in self.values.items() if value.dtype == np.float32 and value.ndim > 1]
        names = [name for name in names if rank is None or self.values[name].ndim == rank] or names
        return self.chance.choice(names[-4:])

    def constant(self, array: Array | np.generic, *, shared: bool = True) -> str:
        """An initializer, or one that is there and fits."""
        array = np.asarray(array)
        alike = [
            name for name, held in self.constants.items() if (held.shape, held.dtype) == (array.shape, array.dtype)
        ]
        if shared and alike and array.dtype == np.float32 and self.chance.random() < 0.3:
            return self.chance.choice(alike)
        name = self.name(f"w{len(self.constants)}")
        self.constants[name] = array
        return name

    def weight(self, *shape: int) -> str:
        scale = self.chance.choice([0.1, 0.3, 0.3, 1.0])
        array = self.normal(*shape, scale=scale)
        if self.chance.random() < 0.1:
            array[self.chance.randrange(shape[0])] *= self.chance.choice([0.0, 1e-8, 30.0])
        return self.constant(array)

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str] | None:
        """A node, if onnxruntime runs it, and gives finite numbers of a bearable count."""
        names: list[str] = []
        for k in range(outputs):
            names += [self.name(f"t{len(self.values)}_{k}")]
        named = (
            ""
            if self.chance.random() < 0.2
            else self.chance.choice([names[0], f"{op}_{len(self.nodes)}", f"n{len(self.nodes)}"])
        )
        node = helper.make_node(op, inputs, names, name=named, **attributes)
        found = run_alone(node, {**self.values, **self.constants}, self.opset)
        if found is None or not all(
            0 < made.size <= SAMPLES * LARGEST and np.isfinite(made.astype(np.float64)).all() for made in found
        ):
            return None
        if any(made.ndim == 0 or made.shape[0] != SAMPLES for made in found) and self.batch == "N" and op != "Constant":
            return None
        sizes = [float(np.abs(made).max()) for made in found if made.dtype.kind == "f"]
        if any(size > 1e4 or 0 < size < 1e-20 for size in sizes):  # kernels flush what comes of smaller ones to 0
            return None
        self.nodes.append(node)
        self.values |= dict(zip(names, found, strict=True))
        return names


def names_read(node: onnx.NodeProto) -> list[str]:
    """What a node reads, in its sub-graphs too."""
    inner = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return [*node.input, *(name for graph in inner for child in graph.node for name in names_read(child))]


def run_alone(node: onnx.NodeProto, values: dict[str, Array], opset: int) -> list[Array] | None:
    """What onnxruntime makes of one node; None: it refuses it."""
    names = [name for name in dict.fromkeys(names_read(node)) if name in values]
    graph = helper.make_graph(
        [node],
        "one",
        [],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [numpy_helper.from_array(values[name], name) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 8, {"": opset}
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnx.checker.check_node(node, context)  # the runtime takes some operators at opsets that have none
        return list(
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {})
        )
    except Exception:  # noqa: BLE001 - whatever it is, the node is not drawn
        return None
