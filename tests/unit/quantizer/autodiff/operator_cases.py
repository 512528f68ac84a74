"""A call of every operator that has a derivative in torch, in several forms: nodes as text, and their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.unit.quantizer.toolbox import normal

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One node, ``Op<attributes>(inputs)``, whose outputs are y, z ...

    ``frozen`` inputs of floats have no derivative.
    """

    node: str
    inputs: Inputs = field(default_factory=dict)
    outputs: int = 1
    opset: int = 20
    frozen: tuple[str, ...] = ()

    @property
    def op_type(self) -> str:
        return self.node.split("<")[0].split("(")[0]

    def __str__(self) -> str:
        shapes = ",".join(f"{name}{list(array.shape)}" for name, array in self.inputs.items())
        return f"{self.node} {shapes}"


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def scalar(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def away(*shape: int, seed: int = 1) -> np.ndarray:
    """Values of both signs that keep away from whole numbers, and from one another."""
    count = int(np.prod(shape))
    values = (np.arange(count) + 0.63) / count * 2.97
    random = np.random.default_rng(seed)
    return (random.permutation(values) * random.choice([-1, 1], count)).reshape(shape).astype(np.float32)


def positive(*shape: int, seed: int = 1) -> np.ndarray:
    return np.abs(away(*shape, seed=seed))


def booleans(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.5


_ELEMENTWISE = (
    "Abs Atan Asinh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh ThresholdedRelu"
)


def _of_one_value() -> Iterator[Case]:
    x = away(3, 5)
    for op in _ELEMENTWISE.split():
        yield Case(f"{op}(x)", {"x": x})
    for op in ("Acos", "Asin", "Atanh"):
        yield Case(f"{op}(x)", {"x": x / 4})
    yield Case("Swish(x)", {"x": x}, opset=24)
    yield Case("Swish<alpha=0.7>(x)", {"x": x}, opset=24)
    yield Case("Acosh(x)", {"x": positive(7) + 1.1})
    for op in ("Log", "Sqrt"):
        yield Case(f"{op}(x)", {"x": positive(3, 5)})
    for node in (
        "Elu<alpha=0.7>", "Selu<alpha=1.2, gamma=0.8>", "Celu<alpha=2.0>", "LeakyRelu<alpha=0.3>",
        "HardSigmoid<alpha=0.3, beta=0.4>", "ThresholdedRelu<alpha=0.5>", "Shrink<lambd=0.7, bias=0.3>",
        'Gelu<approximate="tanh">', "Softmax", "Softmax<axis=0>", "LogSoftmax", "LogSoftmax<axis=0>",
    ):  # fmt: skip
        yield Case(f"{node}(x)", {"x": x})
    yield Case("PRelu(x, s)", {"x": away(2, 3, 4), "s": normal(3, 1, seed=2)})
    limits = {"low": scalar(-0.8), "high": scalar(1.1)}
    yield Case("Clip(x, low, high)", {"x": x} | limits)
    yield Case("Clip(x, low)", {"x": x, "low": limits["low"]})
    yield Case("Clip(x, , high)", {"x": x, "high": limits["high"]})
    yield Case("Clip(x)", {"x": x})
    yield Case("Dropout(x)", {"x": x})
    yield Case("Dropout(x, r)", {"x": x, "r": scalar(0.3)}, frozen=("r",))


def _of_two_values() -> Iterator[Case]:
    a, b = away(2, 3, 4), away(3, 1, seed=2)
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean"):
        yield Case(f"{op}(a, b)", {"a": a, "b": b})
    for op in ("Min", "Max", "Sum", "Mean"):
        yield Case(f"{op}(a, b, c)", {"a": a, "b": b, "c": away(4, seed=3)})
        yield Case(f"{op}(a)", {"a": a})
    yield Case("Mod<fmod=1>(a, b)", {"a": a, "b": b})
    yield Case("Pow(a, b)", {"a": positive(2, 3), "b": away(3, seed=2)})
    yield Case("Pow(a, b)", {"a": a, "b": scalar(2.0)}, frozen=("b",))
    yield Case("Pow(a, b)", {"a": a, "b": ints(3)})
    yield Case("Pow(a, b)", {"a": ints(2, 3), "b": floats(2, 3)})
    yield Case("Where(c, a, b)", {"c": booleans(3, 4), "a": a, "b": b})


def _products() -> Iterator[Case]:
    x, w, b = normal(2, 4, 7, 6, seed=1), normal(6, 4, 3, 3, seed=2), normal(6, seed=3)
    for form in (
        "", "<pads=[1,1,1,1], strides=[2,2]>", "<pads=[0,1,2,1]>", "<dilations=[2,1], pads=[2,0,1,0]>",
        '<auto_pad="SAME_UPPER", strides=[2,2]>', '<auto_pad="SAME_LOWER", strides=[2,1]>',
    ):  # fmt: skip
        yield Case(f"Conv{form}(x, w, b)", {"x": x, "w": w, "b": b})
    yield Case("Conv<group=2>(x, w)", {"x": x, "w": normal(6, 2, 3, 3, seed=2)})
    yield Case("Conv<strides=[2], pads=[2,0]>(x, w)", {"x": normal(2, 4, 9), "w": normal(3, 4, 4, seed=2)})
    yield Case("Conv<pads=[0,1,0,1,1,0]>(x, w)", {"x": normal(1, 2, 4, 3, 4), "w": normal(2, 2, 2, 2, 3, seed=2)})
    w = normal(4, 3, 3, 3, seed=2)
    for form in (
        "", "<strides=[2,2], output_padding=[1,1], pads=[1,1,1,1]>", "<strides=[2,3], pads=[0,1,1,2]>",
        '<auto_pad="SAME_UPPER", strides=[2,2]>', '<output_shape=[15,12], strides=[2,2]>',
    ):  # fmt: skip
        yield Case(f"ConvTranspose{form}(x, w, b)", {"x": x, "w": w, "b": normal(3, seed=3)})
    yield Case("ConvTranspose<group=2, dilations=[2,1]>(x, w)", {"x": x, "w": w})
    yield Case("ConvTranspose<strides=[2]>(x, w)", {"x": normal(2, 4, 5), "w": normal(4, 3, 3, seed=2)})
    m = {"a": normal(5, 4, seed=1), "b": normal(4, 3, seed=2), "c": normal(3, seed=3)}
    yield Case("Gemm(a, b, c)", m)
    yield Case("Gemm<alpha=0.5, beta=2.0>(a, b, c)", m)
    yield Case("Gemm<transA=1, transB=1>(a, b)", {"a": m["a"].T.copy(), "b": m["b"].T.copy()})
    yield Case("MatMul(a, b)", {"a": normal(2, 3, 4), "b": normal(4, 5, seed=2)})
    yield Case("MatMul(a, b)", {"a": normal(4), "b": normal(2, 4, 5, seed=2)})
    yield Case('Einsum<equation="bij, bjk -> bik">(a, b)', {"a": normal(2, 3, 4), "b": normal(2, 4, 5, seed=2)})
    yield Case('Einsum<equation="...ij->...ji">(a)', {"a": normal(2, 3, 4)})
    yield Case('Einsum<equation="ij,kj,k">(a, b, c)', {"a": normal(2, 3), "b": normal(4, 3, seed=2), "c": normal(4)})


def _normalizations() -> Iterator[Case]:
    x, s, b = normal(2, 4, 3, 5), normal(4, seed=2), normal(4, seed=3)
    trained = {"x": x, "s": s, "b": b}
    frozen = trained | {"m": normal(4, seed=4), "v": positive(4, seed=5)}
    yield Case("BatchNormalization(x, s, b, m, v)", frozen, frozen=("m", "v"))
    matrix = frozen | {"x": normal(3, 4)}
    yield Case("BatchNormalization<epsilon=0.1>(x, s, b, m, v)", matrix, frozen=("m", "v"))
    yield Case("InstanceNormalization(x, s, b)", trained)
    yield Case("InstanceNormalization<epsilon=0.1>(x, s, b)", trained | {"x": normal(2, 4, 6)})
    yield Case("InstanceNormalization(x, s, b)", trained | {"x": normal(2, 4, 1)})
    yield Case("GroupNormalization<num_groups=2>(x, s, b)", trained, opset=21)
    yield Case("GroupNormalization<num_groups=2, epsilon=0.1>(x, s, b)", trained | {"s": s[:2], "b": b[:2]}, opset=18)
    wide = {"x": normal(2, 3, 4), "s": normal(4, seed=2), "b": normal(4, seed=3)}
    yield Case("LayerNormalization(x, s, b)", wide)
    yield Case("LayerNormalization<axis=1, epsilon=0.1>(x, s)", {"x": wide["x"], "s": normal(3, 4, seed=2)})
    yield Case("RMSNormalization(x, s)", {"x": wide["x"], "s": wide["s"]}, opset=23)
    yield Case("RMSNormalization<axis=1, epsilon=0.1>(x, s)", {"x": wide["x"], "s": normal(3, 4, seed=2)}, opset=23)
    yield Case("SimplifiedLayerNormalization<axis=-1>(x, s)", {"x": wide["x"], "s": wide["s"]}, opset=17)
    for form in ("", "<axis=1>", "<p=1>", "<p=1, axis=0>"):
        yield Case(f"LpNormalization{form}(x)", {"x": away(2, 3, 4)})
    for size in (1, 3, 5):
        yield Case(f"LRN<size={size}, alpha=0.2, beta=0.6, bias=1.5>(x)", {"x": normal(2, 6, 3, 2)})
    yield Case("MeanVarianceNormalization(x)", {"x": x})
    yield Case("MeanVarianceNormalization<axes=[1,-1]>(x)", {"x": x})


def _pools() -> Iterator[Case]:
    one, two, three = away(2, 2, 11), away(1, 2, 7, 9), away(1, 2, 5, 4, 6)
    forms = [
        ("kernel_shape=[3]", one), ("kernel_shape=[3], strides=[2], pads=[0,2]", one),
        ("kernel_shape=[3,2]", two), ("kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]", two),
        ("kernel_shape=[3,2], strides=[2,2], ceil_mode=1", two),
        ("kernel_shape=[2,2], strides=[3,3], pads=[0,0,1,1], ceil_mode=1", two),
        ("kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1", two),
        ('kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_UPPER"', two),
        ('kernel_shape=[4,3], strides=[3,2], auto_pad="SAME_LOWER"', two),
        ('kernel_shape=[3,2], strides=[2,2], auto_pad="VALID"', two),
        ('kernel_shape=[2,2], strides=[2,2], auto_pad="VALID", ceil_mode=1', two),
        ('kernel_shape=[3,2], strides=[3,4], auto_pad="VALID", ceil_mode=1', two),
        ("kernel_shape=[3,2], dilations=[2,3]", two),
        ("kernel_shape=[3,2], dilations=[2,1], strides=[1,2], pads=[2,0,1,1]", two),
        ("kernel_shape=[3,2], dilations=[2,1], strides=[2,3], pads=[1,0,1,1], ceil_mode=1", two),
        ("kernel_shape=[2,2,3], strides=[1,2,2]", three), ("kernel_shape=[2,2,3], pads=[1,0,1,0,1,1]", three),
    ]  # fmt: skip
    for form, x in forms:
        yield Case(f"MaxPool<{form}>(x)", {"x": x}, opset=22)
        yield Case(f"AveragePool<{form}>(x)", {"x": x}, opset=22)
        yield Case(f"AveragePool<{form}, count_include_pad=1>(x)", {"x": x}, opset=22)
        yield Case(f"LpPool<{form}>(x)", {"x": x}, opset=22)
    yield Case("LpPool<kernel_shape=[2,2], p=3>(x)", {"x": two}, opset=22)
    yield Case("MaxPool<kernel_shape=[2,2], pads=[1,1,1,1]>(x)", {"x": -positive(1, 2, 4, 4)})
    for x in (one, two, three):
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "GlobalLpPool<p=3>"):
            yield Case(f"{op}(x)", {"x": x})


def _reductions() -> Iterator[Case]:
    x = positive(2, 3, 4)
    for op in ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]:
        yield Case(f"Reduce{op}(x)", {"x": x})
        yield Case(f"Reduce{op}<keepdims=0>(x, axes)", {"x": x, "axes": ints(-1, 0)})
        yield Case(f"Reduce{op}(x, axes)", {"x": x, "axes": ints(1)})
        yield Case(f"Reduce{op}<axes=[1], keepdims=0>(x)" if op != "Sum" else "ReduceSum(x)", {"x": x}, opset=13)
    for op in ("Sum", "Mean", "Max"):
        yield Case(f"Reduce{op}<noop_with_empty_axes=1>(x)", {"x": x})
    for form in ("", "<exclusive=1>", "<reverse=1>", "<reverse=1, exclusive=1>"):
        yield Case(f"CumSum{form}(x, axis)", {"x": x, "axis": np.asarray(1, np.int64)})
    for form in ("", "<largest=0>", "<axis=0>", "<axis=1, largest=0>"):
        yield Case(f"TopK{form}(x, k)", {"x": away(3, 4, 5), "k": ints(2)}, outputs=2)


def value_cases() -> list[Case]:
    """Operators that compute values."""
    families = (_of_one_value, _of_two_values, _products, _normalizations, _pools, _reductions)
    return [case for family in families for case in family()]
