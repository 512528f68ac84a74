"""Every operator of the gradient solver against onnxruntime, and its gradient against differences."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.finetune.gradient.network import Network
from worker.quantizer.finetune.gradient.operators import UNIT_COMPUTE, clip_inward
from worker.quantizer.finetune.reconstruction.layers import operation_of
from worker.quantizer.finetune.reconstruction.unit import OPERATORS, Unit, UnsupportedUnitError

CPU = torch.device("cpu")
_2D, _1D, _3D = (2, 4, 7, 9), (2, 4, 11), (2, 4, 5, 6, 4)
_UPPER, _LOWER = 'auto_pad="SAME_UPPER"', 'auto_pad="SAME_LOWER"'
_CONVS = {
    "Conv": (_2D, (6, 4, 3, 3)),
    "Conv<pads=[1,1,1,1], strides=[2,2]>": (_2D, (6, 4, 3, 3)),
    "Conv<pads=[0,1,2,1]>": (_2D, (6, 4, 3, 3)),
    "Conv<dilations=[2,3], pads=[2,3,2,3]>": (_2D, (6, 4, 3, 3)),
    "Conv<group=2>": (_2D, (6, 2, 3, 3)),
    "Conv<group=4, pads=[1,1,1,1]>": (_2D, (4, 1, 3, 3)),
    f"Conv<{_UPPER}, strides=[2,2]>": (_2D, (6, 4, 4, 3)),
    f"Conv<{_LOWER}, strides=[2,2]>": (_2D, (6, 4, 4, 3)),
    'Conv<auto_pad="VALID", strides=[1,2]>': (_2D, (6, 4, 3, 3)),
    "Conv<strides=[3], pads=[2,0]>": (_1D, (6, 4, 5)),
    f"Conv<{_LOWER}>": (_1D, (6, 4, 4)),
    "Conv<pads=[1,1,1,1,1,1], strides=[2,1,2]>": (_3D, (6, 4, 3, 2, 3)),
    "Conv<group=2, pads=[0,1,0,1,1,0]>": (_3D, (6, 2, 2, 2, 2)),
    "ConvTranspose": (_2D, (4, 6, 3, 3)),
    "ConvTranspose<strides=[2,2], output_padding=[1,1], pads=[1,1,1,1]>": (_2D, (4, 6, 3, 3)),
    "ConvTranspose<strides=[2,3], pads=[0,1,1,2]>": (_2D, (4, 6, 3, 4)),
    "ConvTranspose<group=2, dilations=[2,1], strides=[2,2]>": (_2D, (4, 3, 3, 3)),
    f"ConvTranspose<{_UPPER}, strides=[2,2]>": (_2D, (4, 6, 3, 3)),
    f"ConvTranspose<{_LOWER}, strides=[2,2]>": (_2D, (4, 6, 3, 3)),
    "ConvTranspose<output_shape=[15,18], strides=[2,2]>": (_2D, (4, 6, 4, 3)),
    "ConvTranspose<strides=[2], pads=[1,1], output_padding=[1]>": (_1D, (4, 6, 3)),
    "ConvTranspose<strides=[2,2,1], output_padding=[1,0,0]>": (_3D, (4, 6, 2, 2, 3)),
}


def compare(text: str, x: np.ndarray, constants: dict[str, np.ndarray]) -> None:
    rank = ",".join("ABCDE"[: x.ndim])
    body = f"(float[{rank}] x) => (float y) {{ {text} }}"
    compare_model(make_model(body, constants, opset=20, ir_version=9), x, constants)


def compare_model(model: onnx.ModelProto, x: np.ndarray, constants: dict[str, np.ndarray]) -> None:
    expected = run_onnx(model, {"x": x}, optimized=False)["y"]
    operations = tuple(operation_of(node) for node in ir.from_proto(model).graph)
    network = Network(Unit("one", operations, "y", {}, constants), CPU)
    got = network.limit(network({"x": torch.from_numpy(x)}, {})).numpy()
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("node", _CONVS)
@pytest.mark.parametrize("biased", [True, False])
def test_convolutions(node: str, biased: bool) -> None:
    shape, weight = _CONVS[node]
    channels = weight[0] if node.startswith("Conv<") or node == "Conv" else 6
    constants = {"w": normal(*weight, seed=2)} | ({"b": normal(channels, seed=3)} if biased else {})
    compare(f"y = {node}(x, w{', b' if biased else ''})", normal(*shape, seed=1), constants)


_OTHERS = {
    "y = Gemm(x, w, b)": ((5, 4), {"w": (4, 3), "b": (3,)}),
    "y = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b)": ((5, 4), {"w": (3, 4), "b": (3,)}),
    "y = Gemm<transA=1>(x, w)": ((4, 5), {"w": (4, 3)}),
    "y = Gemm<transB=1>(x, w, b)": ((5, 4), {"w": (3, 4), "b": (1, 3)}),
    "y = MatMul(x, w)": ((2, 3, 4), {"w": (4, 5)}),
    "m = MatMul(x, w) y = Add(m, b)": ((2, 2, 3, 4), {"w": (2, 4, 5), "b": (5,)}),
    "y = LayerNormalization(x, w, b)": ((2, 3, 8), {"w": (8,), "b": (8,)}),
    "y = LayerNormalization<axis=1, epsilon=0.1>(x, w)": ((2, 3, 8), {"w": (3, 8)}),
    "y = InstanceNormalization<epsilon=0.1>(x, w, b)": ((2, 4, 5, 3), {"w": (4,), "b": (4,)}),
    "y = InstanceNormalization(x, w, b)": ((2, 4, 9), {"w": (4,), "b": (4,)}),
    "y = Relu(x)": ((3, 4), {}),
    "y = PRelu(x, w)": ((3, 4, 5), {"w": (4, 1)}),
    "y = LeakyRelu<alpha=0.3>(x)": ((3, 4), {}),
    "y = Gelu(x)": ((3, 4), {}),
    'y = Gelu<approximate="tanh">(x)': ((3, 4), {}),
    "y = Tanh(x)": ((3, 4), {}),
    "y = Sigmoid(x)": ((3, 4), {}),
    "y = Softmax<axis=1>(x)": ((3, 4, 5), {}),
    "y = Softmax(x)": ((3, 4, 5), {}),
    "y = HardSigmoid<alpha=0.3, beta=0.4>(x)": ((3, 4), {}),
    "y = HardSwish(x)": ((30, 4), {}),
    "y = Identity(x)": ((3, 4), {}),
    "y = GlobalAveragePool(x)": ((3, 4, 5, 2), {}),
    "y = Min(x, w)": ((3, 4, 5), {"w": (4, 1)}),
    "y = Max(w, x)": ((3, 4, 5), {"w": (4, 1)}),
    "r = Relu(x) y = Mul(r, x)": ((3, 4), {}),
}


@pytest.mark.parametrize("text", _OTHERS)
def test_other_operators(text: str) -> None:
    shape, weights = _OTHERS[text]
    constants = {name: normal(*dims, seed=k + 2) for k, (name, dims) in enumerate(weights.items())}
    compare(text, normal(*shape, seed=1, scale=2.0), constants)


@pytest.mark.parametrize("limits", [["lo", "hi"], ["lo"], ["", "hi"], []])
def test_clip_with_any_of_its_limits(limits: list[str]) -> None:
    constants = {name: np.asarray(value, np.float32) for name, value in (("lo", -0.3), ("hi", 0.8)) if name in limits}
    model = make_model("(float[20,4] x) => (float[20,4] y) { a = Tanh(x) y = Clip(a) }", constants)
    model.graph.node[1].input.extend(limits)
    compare_model(model, normal(20, 4, seed=1), constants)


def test_every_operator_that_a_unit_may_hold_is_computed() -> None:
    tried = {text.split("<")[0] for text in _CONVS} | {"Clip"}
    tried |= {part.split("= ")[1].split("(")[0].split("<")[0] for text in _OTHERS for part in text.split(") ")}
    assert tried == set(OPERATORS) == set(UNIT_COMPUTE)


def test_an_unknown_operator_is_refused_by_name() -> None:
    graph = ir.from_proto(make_model("(float[3] x) => (float[3] y) { y = Erf(x) }")).graph
    operations = tuple(operation_of(node) for node in graph)
    with pytest.raises(UnsupportedUnitError, match="Erf"):
        Network(Unit("one", operations, "y", {}), CPU)


def test_what_is_cut_off_gets_a_gradient_only_towards_the_limits() -> None:
    values = torch.tensor([-2.0, -2.0, 0.5, 0.5, 9.0, 9.0], requires_grad=True)
    upstream = torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    held = clip_inward(values, 0.0, 6.0)
    assert held.tolist() == [0.0, 0.0, 0.5, 0.5, 6.0, 6.0]
    held.backward(upstream)
    # a step against the gradient: the first goes up into the limits, the second would go further away
    assert values.grad is not None
    assert values.grad.tolist() == [-1.0, 0.0, -1.0, 1.0, 0.0, 1.0]
