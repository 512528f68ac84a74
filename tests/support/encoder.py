"""A text encoder of BERT's shape, as torch's exporter writes one: tests and benchmarks share it.

Embeddings of tokens, positions and token types, LayerNormalization, layers of attention and a feed-forward network
with Gelu (spelled by Erf, as before opset 20). The weights are random, but heavy-tailed and of rows of very different
size, as those of trained networks are; equal arguments give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Head = Literal["none", "copied", "shared"]
_TYPES = 2
_FREEDOM = 5.0  # Student's t: of finite variance, with one weight of some thousands ten times the usual
_ROW_SPREAD = 0.35


def encoder(
    *,
    layers: int = 6,
    hidden: int = 256,
    heads: int = 4,
    tokens: int = 30_000,
    positions: int = 128,
    head: Head = "none",
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """(int64 ids [n, s], int64 types [n, s]) -> float32 states [n, s, hidden], or scores [n, s, tokens].

    Feed-forward networks have four times ``hidden`` channels. ``head``: "none"; or scores by the transposed token
    table: "copied" is a MatMul with a transposed initializer of its own, which constant folding leaves of tied
    weights, "shared" is a Gemm with transB on the table itself.
    """
    made = _Making(seed)
    table = made.weight("token_table", tokens, hidden, scale=0.05)
    words = made.node("Gather", [table, "ids"], "tokens_of_ids")
    length = made.node("Gather", [made.node("Shape", ["ids"], "shape"), made.constant("one", 1)], "length")
    last = made.node("Unsqueeze", [length, made.constant("first_axis", [0])], "length_as_list")
    known = made.constant("position_ids", [np.arange(positions)])
    ids = made.node("Slice", [known, made.constant("begin", [0]), last, made.constant("axis", [1])], "positions_in_use")
    places = made.weight("position_table", positions, hidden, scale=0.02)
    places = made.node("Gather", [places, ids], "positions_of_ids")
    types = made.node("Gather", [made.weight("type_table", _TYPES, hidden, scale=0.02), "types"], "types_of_ids")
    states = made.node("Add", [made.node("Add", [words, types], "typed"), places], "embedded")
    states = made.norm(states, "embeddings", hidden)
    for layer in range(layers):
        states = made.layer(states, f"layer{layer}", hidden, heads)
    if head == "copied":
        turned = made.store("token_table_turned", np.ascontiguousarray(made.arrays[table].T))
        states = made.node("MatMul", [states, turned], "head")
    elif head == "shared":
        rows = made.node("Reshape", [states, made.constant("as_rows", [-1, hidden])], "states_as_rows")
        scores = made.node("Gemm", [rows, table], "head", transB=1)
        sizes = [made.node("Shape", ["ids"], "sizes"), made.constant("rest", [-1])]
        shape = made.node("Concat", sizes, "shape_of_scores", axis=0)
        states = made.node("Reshape", [scores, shape], "scores_of_positions")
    return made.model(states, hidden if head == "none" else tokens, opset)


def texts(count: int, length: int, *, tokens: int = 30_000, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of an encoder: int64 [count, length] each; small ids are frequent, as in text."""
    generator = np.random.default_rng(seed)
    ids = np.minimum(generator.pareto(0.6, (count, length)) * 20, tokens - 1).astype(np.int64)
    types = (np.arange(length) >= generator.integers(1, length, (count, 1))).astype(np.int64)
    return {"ids": ids, "types": types}


class _Making:
    """Nodes and initializers so far."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.arrays: dict[str, np.ndarray] = {}

    def weight(self, name: str, *shape: int, scale: float) -> str:
        values = self._generator.standard_t(_FREEDOM, shape) * scale
        if len(shape) > 1:
            values *= np.exp(self._generator.normal(0, _ROW_SPREAD, (shape[0], 1)))
        return self.store(name, values.astype(np.float32))

    def constant(self, name: str, value: int | Sequence[int] | Sequence[np.ndarray]) -> str:
        return self.store(name, np.asarray(value, np.int64)) if name not in self.arrays else name

    def store(self, name: str, array: np.ndarray) -> str:
        self.arrays[name] = array
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, inputs: Sequence[str], name: str, **attributes: int | list[int]) -> str:
        made = helper.make_node(op_type, inputs, [f"{name}_out"], name=name)
        made.attribute.extend(helper.make_attribute(word, value) for word, value in attributes.items())
        self.nodes.append(made)
        return f"{name}_out"

    def norm(self, source: str, name: str, hidden: int) -> str:
        gain = self.store(f"{name}_gain", (1 + 0.1 * self._generator.standard_normal(hidden)).astype(np.float32))
        return self.node("LayerNormalization", [source, gain, self.weight(f"{name}_shift", hidden, scale=0.05)], name)

    def linear(self, source: str, name: str, inputs: int, outputs: int) -> str:
        weight = self.weight(f"{name}_w", inputs, outputs, scale=0.6 * inputs**-0.5)
        product = self.node("MatMul", [source, weight], name)
        return self.node("Add", [self.weight(f"{name}_b", outputs, scale=0.02), product], f"{name}_bias")

    def layer(self, states: str, name: str, hidden: int, heads: int) -> str:
        split = self.constant("split", [0, 0, heads, hidden // heads])
        parts = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            stem = f"{name}_{part}"
            turned = self.node("Reshape", [self.linear(states, stem, hidden, hidden), split], f"{stem}_split")
            parts[part] = self.node("Transpose", [turned], f"{stem}_turned", perm=order)
        scores = self.node("MatMul", [parts["query"], parts["key"]], f"{name}_scores")
        root = self._root(hidden // heads)
        shares = self.node("Softmax", [self.node("Div", [scores, root], f"{name}_scaled")], f"{name}_shares", axis=-1)
        mixed = self.node("MatMul", [shares, parts["value"]], f"{name}_mixed")
        mixed = self.node("Transpose", [mixed], f"{name}_back", perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.constant("joined", [0, 0, hidden])], f"{name}_joined")
        mixed = self.linear(mixed, f"{name}_out", hidden, hidden)
        states = self.norm(self.node("Add", [mixed, states], f"{name}_kept"), f"{name}_norm", hidden)
        inner = self._gelu(self.linear(states, f"{name}_up", hidden, 4 * hidden), f"{name}_gelu")
        inner = self.linear(inner, f"{name}_down", 4 * hidden, hidden)
        return self.norm(self.node("Add", [inner, states], f"{name}_kept2"), f"{name}_norm2", hidden)

    def _root(self, width: int) -> str:
        return "root" if "root" in self.arrays else self.store("root", np.asarray(width**0.5, np.float32))

    def _gelu(self, source: str, name: str) -> str:
        for word, number in (("sqrt2", 2**0.5), ("unit", 1.0), ("half", 0.5)):
            if word not in self.arrays:
                self.store(word, np.asarray(number, np.float32))
        erf = self.node("Erf", [self.node("Div", [source, "sqrt2"], f"{name}_scaled")], f"{name}_erf")
        both = self.node("Mul", [source, self.node("Add", [erf, "unit"], f"{name}_one")], f"{name}_times")
        return self.node("Mul", [both, "half"], name)

    def model(self, result: str, width: int, opset: int) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "s"]) for name in ("ids", "types")]
        self.nodes.append(helper.make_node("Identity", [result], ["result"], name="result"))
        output = helper.make_tensor_value_info("result", TensorProto.FLOAT, ["n", "s", width])
        graph = helper.make_graph(self.nodes, "encoder", inputs, [output], self.initializers)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.checker.check_model(made)
        return made
