"""What a file need not hold goes, and nothing that the model computes changes by a bit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir

from tests.support.encoder import encoder, texts
from tests.unit.quantizer.toolbox import make_model, normal, op_types, run_onnx
from worker.quantizer.emit.tidy import tidied
from worker.quantizer.graph.serialized import to_bytes


def tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    before = model.SerializeToString()
    held = ir.from_proto(onnx.load_from_string(before))
    found = onnx.load_from_string(to_bytes(tidied(held)))
    onnx.checker.check_model(found)
    assert to_bytes(held) == to_bytes(ir.from_proto(onnx.load_from_string(before)))  # the original stays as it is
    return found


def test_an_encoder_computes_the_same_bits() -> None:
    model = encoder(layers=2, hidden=16, heads=2, tokens=50, positions=12, head="copied")
    for node in model.graph.node:  # each Gelu and Softmax reads constants of its own
        for k, name in enumerate(node.input):
            if name in ("sqrt2", "half", "root", "split"):
                twin = next(tensor for tensor in model.graph.initializer if tensor.name == name)
                copy = model.graph.initializer.add()
                copy.CopyFrom(twin)
                copy.name = node.input[k] = f"{name}_of_{node.name}"
    found, feeds = tidy(model), texts(5, 9, tokens=50)
    for optimized in (True, False):
        before = run_onnx(model, feeds, optimized=optimized)["result"]
        np.testing.assert_array_equal(run_onnx(found, feeds, optimized=optimized)["result"], before)
    # one of each constant is left, and one of both Shape nodes that read the same is
    used = {name for node in found.graph.node for name in node.input}
    assert len([tensor for tensor in found.graph.initializer if tensor.name in used]) == len(found.graph.initializer)
    assert len(found.graph.initializer) < len(model.graph.initializer) - 10
    assert len(found.graph.value_info) == 0


def test_equal_constants_small_and_large_are_held_once() -> None:
    large, small = normal(40, 40), normal(40)
    weights = {"a": large, "b": large.copy(), "c": small, "d": small.copy(), "e": large.T.copy()}
    text = (
        "(float[N,40] x) => (float[N,40] y) { s = MatMul(x, a) t = MatMul(s, b) u = Add(t, c) v = Add(u, d) "
        "y = MatMul(v, e) }"
    )
    model = make_model(text, weights)
    found, feeds = tidy(model), {"x": normal(3, 40, seed=2)}
    assert sorted(list(tensor.dims) for tensor in found.graph.initializer) == [[40], [40, 40], [40, 40]]
    assert len(found.SerializeToString()) < 2 * large.nbytes + 2000
    np.testing.assert_array_equal(run_onnx(found, feeds)["y"], run_onnx(model, feeds)["y"])


def test_constants_that_only_look_alike_are_kept_apart() -> None:
    zeros = np.zeros(4, np.float32)
    weights = {"a": zeros, "b": -zeros, "c": np.zeros(4, np.int32), "d": zeros.reshape(4, 1)}
    text = (
        "(float[1] x) => (float[4] y, float[4] z, int32[4] w, float[4,1] v) "
        "{ y = Div(x, a) z = Div(x, b) w = Identity(c) v = Identity(d) }"
    )
    model = make_model(text, weights)
    before, after = (run_onnx(one, {"x": np.ones(1, np.float32)}) for one in (model, tidy(model)))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert before["y"][0] == np.inf and before["z"][0] == -np.inf


def test_equal_nodes_stand_once_and_outputs_keep_their_names() -> None:
    text = (
        "(float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] s) "
        "{ y = Exp(x) z = Exp(x) a = Tanh(x) b = Tanh(x) s = Sub(a, b) }"
    )
    model = make_model(text)
    found, feeds = tidy(model), {"x": normal(3, 4)}
    assert Counter(op_types(found))["Tanh"] == 1
    made = run_onnx(found, feeds)
    for name, array in run_onnx(model, feeds).items():
        np.testing.assert_array_equal(made[name], array)


def test_what_is_drawn_twice_is_drawn_twice() -> None:
    text = "(float[N,4] x) => (float[N,4] y) { a = RandomUniformLike(x) b = RandomUniformLike(x) y = Sub(a, b) }"
    found = tidy(make_model(text))
    assert Counter(op_types(found))["RandomUniformLike"] == 2
    assert np.abs(run_onnx(found, {"x": normal(3, 4)})["y"]).min() > 0
