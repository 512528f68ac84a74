"""The independent checker sees every kind of fault: a good model, spoiled in one place, is found guilty there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tests.support.each import each
from tests.support.npu_checker import check_npu_model
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_model

Graph = onnx.GraphProto


@pytest.fixture(scope="module")
def good() -> onnx.ModelProto:
    weights = {
        "w": normal(4, 3, 3, 3, scale=0.4),
        "w2": normal(4, 4, 3, 3, scale=0.3),
        "b": normal(4),
        "half": np.full((4, 1, 1), 0.5, np.float32),
    }
    model = make_model(
        "(float[N,3,9,9] x) => (float[N,8,3,3] y) { [c1] t = Conv(x, w, b) [r] r = Relu(t) [c2] u = "
        "Conv<pads=[1,1,1,1]>(r, w2, b) [l] l = LeakyRelu<alpha=0.1>(u) [gate] s = Sigmoid(l) "
        "[swish] m = Mul(l, s) [add] a = Add(m, r) "
        "[term] k = Add(a, half) [pool] p = AveragePool<kernel_shape=[3,3],strides=[2,2]>(k) [max] q = "
        "MaxPool<kernel_shape=[3,3],strides=[2,2]>(a) [join] y = Concat<axis=1>(p, q) }",
        weights,
    )
    emitted = quantize_model(model, {"x": normal(16, 3, 9, 9)}, config(target="amd_npu_cnn"))[2]
    assert not check_npu_model(emitted)
    return emitted


def node(graph: Graph, name: str) -> onnx.NodeProto:
    return next(node for node in graph.node if node.name == name)


def pair(graph: Graph, tensor: str) -> list[onnx.NodeProto]:
    quantize = next(n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor)
    return [quantize, next(n for n in graph.node if n.input[:1] == quantize.output[:1])]


def put(graph: Graph, nodes: list[onnx.NodeProto], index: int, array: np.ndarray) -> None:
    name = f"spoiled_{len(graph.initializer)}"
    graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for found in nodes:
        found.input[index] = name


def move(tensor: str, position: int) -> Callable[[Graph], None]:
    def spoil(graph: Graph) -> None:
        put(graph, pair(graph, tensor), 1, np.asarray(2.0**-position, np.float32))

    return spoil


def move_constant(of: str, index: int, position: int) -> Callable[[Graph], None]:
    def spoil(graph: Graph) -> None:
        name = node(graph, of).input[index]
        (dequantize,) = [found for found in graph.node if name in found.output]
        put(graph, [dequantize], 1, np.asarray(2.0**-position, np.float32))

    return spoil


def exact_average(graph: Graph) -> None:
    factor = node(graph, "pool_simulated")
    pool = node(graph, "pool")
    pool.output[0], factor.output[0] = factor.output[0], "unread"


def soft_gate(graph: Graph) -> None:
    gate = node(graph, "gate")
    gate.op_type = "Sigmoid"
    del gate.attribute[:]


FAULTS: dict[str, tuple[Callable[[Graph], None], str]] = {
    "scale": (lambda graph: put(graph, pair(graph, "r"), 1, np.asarray(0.3, np.float32)), "power_of_two"),
    "zero point": (lambda graph: put(graph, pair(graph, "r"), 2, np.asarray(3, np.int8)), "int8"),
    "float operand": (lambda graph: node(graph, "swish").input.__setitem__(0, "l"), "whole"),
    "concat": (move("q", 1), "aligned"),
    "pool": (move("p", 1), "aligned"),
    "read": (move("m", 14), "shift_read"),
    "write of a sum": (move("k", 22), "shift_write"),
    "write of a product": (move("m", 30), "shift_write"),
    "swish": (move("m", -7), "shift_swish"),
    "cut": (move_constant("c2", 1, 40), "shift_cut"),
    "bias": (move_constant("c2", 2, -20), "shift_bias"),
    "bias before LeakyRelu": (move_constant("c2", 2, 20), "shift_bias"),
    "gate": (move("s", 5), "hard_sigmoid"),
    "average": (exact_average, "operator"),
    "alpha": (lambda graph: setattr(node(graph, "l").attribute[0], "f", 0.1), "operator"),
    "sigmoid": (soft_gate, "operator"),
}


@each("fault", FAULTS)
def test_every_fault_is_found(good: onnx.ModelProto, fault: str) -> None:
    spoil, rule = FAULTS[fault]
    model = onnx.ModelProto()
    model.CopyFrom(good)
    spoil(model.graph)
    assert rule in {violation.rule for violation in check_npu_model(model)}
