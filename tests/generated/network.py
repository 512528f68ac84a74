"""A network drawn at random: operators, attributes, opsets, constants that are shared, sub-graphs, float16 parts, odd
names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.generated.parts import SAMPLES, Parts, names_read

# float32 in, float32 out, one operand
PLAIN = (
    "Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus", "Softsign", "Identity", "Floor", "Ceil", "Erf", "Sign",
    "Round", "HardSwish", "Mish", "Exp", "Sin", "Cos", "Dropout", "Softmax",
)  # fmt: skip
UNARY: dict[str, list[dict[str, Any]]] = {
    **{op: [{}] for op in PLAIN},
    "LeakyRelu": [{}, {"alpha": 0.3}, {"alpha": -0.5}],
    "Elu": [{}, {"alpha": 0.5}],
    "Selu": [{}],
    "Celu": [{"alpha": 2.0}],
    "ThresholdedRelu": [{}, {"alpha": 0.2}],
    "HardSigmoid": [{}, {"alpha": 0.1666667, "beta": 0.5}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "Swish": [{}],
    "LogSoftmax": [{"axis": 1}, {"axis": -1}],
    "Hardmax": [{}, {"axis": 1}],
    "Flatten": [{}, {"axis": 2}, {"axis": -1}],
    "GlobalAveragePool": [{}],
    "GlobalMaxPool": [{}],
    "LpNormalization": [{"axis": 1}, {"axis": -1, "p": 1}],
    "LRN": [{"size": 3}],
    "DepthToSpace": [{"blocksize": 2}, {"blocksize": 2, "mode": "CRD"}],
    "SpaceToDepth": [{"blocksize": 2}],
    "MeanVarianceNormalization": [{"axes": [-1]}],
    "Shrink": [{"lambd": 0.3}],
}
KINDS = (
    *["convolution"] * 6, *["product"] * 4, *["gemm"] * 3, *["unary"] * 7, *["binary"] * 6, *["pool"] * 3, "clip",
    "pad", "move", "move", "slice", "concat", "split", "reduce", "norm", "resize", "gather", "float16", "branch",
    "recurrent", "where", "power", "attention", "transposed", "prelu", "integers",
)  # fmt: skip


class Network(Parts):
    """One network; ``model``, and samples for its inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = self.chance.randint(2, 12)
        for _ in range(4 * wanted):
            if len(self.nodes) < wanted:
                getattr(self, f"draw_{self.chance.choice(KINDS)}")(self.pick())

    def draw_unary(self, x: str) -> None:
        op = self.chance.choice(list(UNARY))
        self.add(op, [x], **self.chance.choice(UNARY[op]))

    def draw_convolution(self, x: str) -> None:
        x = self.pick(self.chance.choice([4, 4, 3]))
        shape = self.values[x].shape
        spatial = len(shape) - 2
        if spatial < 1:
            return
        channels, made = shape[1], self.chance.choice([1, 2, 4, 6])
        group = self.chance.choice([1, 1, 2, channels])
        made = made * group if group > 1 and (made % group or self.chance.random() < 0.5) else made
        if channels % group or made % group:
            return
        kernel = [self.chance.choice([1, 2, 3]) for _ in range(spatial)]
        attributes: dict[str, Any] = {"group": group} if group > 1 else {}
        attributes |= self.windows(spatial, kernel)
        inputs = [x, self.weight(made, channels // group, *kernel)]
        if self.chance.random() < 0.6:
            inputs.append(self.constant(self.normal(made, scale=self.chance.choice([0.1, 1.0, 5.0]))))
        self.add("Conv", inputs, **attributes)

    def windows(self, spatial: int, kernel: list[int], *, dilations: bool = True) -> dict[str, Any]:
        """Strides, dilations, and pads or auto_pad."""
        found: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            found["strides"] = [self.chance.choice([1, 2]) for _ in range(spatial)]
        if dilations and self.chance.random() < 0.3:
            found["dilations"] = [self.chance.choice([1, 2]) for _ in range(spatial)]
        chosen = self.chance.random()
        if chosen < 0.5:
            found["pads"] = [self.chance.randint(0, size - 1) if size > 1 else 0 for size in kernel * 2]
        elif chosen < 0.7:
            found["auto_pad"] = self.chance.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        return found

    def draw_transposed(self, x: str) -> None:
        x = self.pick(4)
        shape = self.values[x].shape
        if len(shape) == 4:
            group = self.chance.choice([1, 1, 2]) if shape[1] % 2 == 0 else 1
            attributes: dict[str, Any] = {"strides": [2, 2], "group": group}
            attributes |= self.chance.choice(
                [{}, {"output_padding": [1, 1]}, {"pads": [1, 0, 0, 1]}, {"dilations": [2, 1]}]
            )
            inputs = [x, self.weight(shape[1], 2, 3, 3)]
            inputs += [self.constant(self.normal(2 * group))] * (self.chance.random() < 0.5)
            self.add("ConvTranspose", inputs, **attributes)

    def draw_product(self, x: str) -> None:
        last = self.values[x].shape[-1]
        sides = [x, self.weight(last, self.chance.choice([1, 3, 8]))]
        if self.chance.random() < 0.15:
            sides = [self.weight(5, self.values[x].shape[-2]), x]
        self.add("MatMul", sides)

    def draw_attention(self, x: str) -> None:
        axes = list(range(self.values[x].ndim))
        if len(axes) < 3:
            return
        axes[-2:] = axes[:-3:-1]
        turned = self.add("Transpose", [x], perm=axes)
        scores = turned and self.add("MatMul", [x, turned[0]])
        scaled = scores and self.add("Mul", [scores[0], self.constant(np.float32(0.3))])
        soft = scaled and self.add("Softmax", [scaled[0]], axis=-1)
        if soft:
            self.add("MatMul", [soft[0], x])

    def draw_gemm(self, x: str) -> None:
        x = self.pick(2)
        if self.values[x].ndim != 2:
            return
        last, made, transposed = self.values[x].shape[1], self.chance.choice([1, 4, 7]), self.chance.random() < 0.5
        attributes: dict[str, Any] = {"transB": 1} if transposed else {}
        if self.chance.random() < 0.3:
            attributes |= {"alpha": self.chance.choice([0.5, -2.0]), "beta": self.chance.choice([0.0, 0.5, 3.0])}
        inputs = [x, self.weight(*((made, last) if transposed else (last, made)))]
        shape = self.chance.choice([(made,), (1, made), (1,), ()])
        inputs += [self.constant(self.normal(*shape))] * (self.chance.random() < 0.7 or self.opset < 11)
        self.add("Gemm", inputs, **attributes)

    def draw_binary(self, x: str) -> None:
        shape = self.values[x].shape
        ones = tuple(length if self.chance.random() < 0.5 else 1 for length in shape[1:])
        alike = [name for name, value in self.values.items() if value.shape == shape and value.dtype == np.float32]
        if self.chance.random() < 0.5:
            other = self.chance.choice(alike)
        else:
            shapes: list[tuple[int, ...]] = [(), (1,), (1, *ones), ones, (1,) * (len(shape) + 1)]
            other = self.constant(self.normal(*self.chance.choice(shapes)) + np.float32(self.chance.choice([0, 2])))
        op = self.chance.choice(["Add", "Add", "Mul", "Mul", "Sub", "Div", "Max", "Min"])
        divisor = np.abs(self.constants.get(other, self.values.get(other, np.zeros(1))))
        if op == "Div" and (other == x or divisor.min() < 0.05 * divisor.max()):
            return  # next to a pole rounding decides
        self.add(op, [other, x] if op != "Div" and self.chance.random() < 0.3 else [x, other])

    def draw_power(self, x: str) -> None:
        squared = self.add("Mul", [x, x])
        if squared:
            shifted = self.add("Add", [squared[0], self.constant(np.float32(1e-3))])
            if shifted:
                self.add(self.chance.choice(["Sqrt", "Log", "Reciprocal"]), shifted)

    def draw_clip(self, x: str) -> None:
        low, high = self.chance.choice([(0, 6), (-1, 1), (0, None), (None, 2), (-1, 3)])
        if self.opset < 11:
            found: dict[str, Any] = {"min": low, "max": high}
            found = {key: float(value) for key, value in found.items() if value is not None}
            self.add("Clip", [x], **found)
            return
        limits = ["" if value is None else self.constant(np.float32(value)) for value in (low, high)]
        if high is not None and self.chance.random() < 0.15:
            top = self.add("ReduceMax", [self.constant(np.array([0.5, 1.5], np.float32))], keepdims=0)
            limits[1] = top[0] if top else limits[1]
        self.add("Clip", [x, *limits])

    def draw_prelu(self, x: str) -> None:
        shape = self.values[x].shape
        if shape[0] != SAMPLES:  # the slope would be longer than what it meets in one sample
            return
        slope = self.chance.choice([(1,), (shape[1], *[1] * (len(shape) - 2)), ()])
        self.add("PRelu", [x, self.constant(self.normal(*slope))])

    def draw_pool(self, x: str) -> None:
        x = self.pick(self.chance.choice([4, 4, 3]))
        spatial = self.values[x].ndim - 2
        if spatial < 1:
            return
        kernel = [self.chance.choice([2, 3]) for _ in range(spatial)]
        op = self.chance.choice(["MaxPool", "AveragePool", "AveragePool", "LpPool"])
        attributes = self.windows(
            spatial, kernel, dilations=self.opset >= {"MaxPool": 10, "AveragePool": 19}.get(op, 18)
        )
        if self.chance.random() < 0.4 and self.opset >= (18 if op == "LpPool" else 10):
            attributes["ceil_mode"] = 1
        if op == "AveragePool" and self.chance.random() < 0.4:
            attributes["count_include_pad"] = 1
        self.add(op, [x], kernel_shape=kernel, **attributes)

    def draw_pad(self, x: str) -> None:
        rank = self.values[x].ndim
        pads = [
            0,
            *[self.chance.choice([0, 1, 2]) for _ in range(rank - 1)],
            0,
            *[self.chance.choice([0, 1]) for _ in range(rank - 1)],
        ]
        mode = self.chance.choice(["constant", "constant", "reflect", "edge"])
        if self.opset < 11:
            self.add("Pad", [x], pads=pads, mode=mode)
        elif self.opset >= 18 and self.chance.random() < 0.4:
            axes = [
                self.constant(np.array([1, -1] if rank > 2 else [1])),
                self.constant(np.array([-1] if rank > 2 else [1])),
            ]
            cut = self.constant(np.array([1, 0, 0, 2] if rank > 2 else [1, 2]))
            self.add("Pad", [x, cut, "", axes[0]], mode=mode)
        else:
            filled = [self.constant(np.float32(self.chance.choice([0.5, -3.0])))] * (
                mode == "constant" and self.chance.random() < 0.4
            )
            self.add("Pad", [x, self.constant(np.array(pads)), *filled], mode=mode)

    def draw_move(self, x: str) -> None:
        shape = self.values[x].shape
        rest = list(range(1, len(shape)))
        self.chance.shuffle(rest)
        choice = self.chance.choice(["Transpose", "Reshape", "Unsqueeze", "Squeeze", "Tile", "Expand"])
        if choice == "Transpose":
            self.add(choice, [x], perm=[0, *rest])
        elif choice == "Reshape":
            sizes = [[0, -1], [-1, int(np.prod(shape[1:]))], [0, *shape[:0:-1]], [0, 1, -1]]
            self.add(choice, [x, self.constant(np.array(self.chance.choice(sizes)))])
        elif choice in ("Unsqueeze", "Squeeze"):
            axis = self.chance.choice([1, -1])
            extra: dict[str, Any] = {"axes": [axis]} if self.opset < 13 else {}
            self.add(choice, [x, *([self.constant(np.array([axis]))] if self.opset >= 13 else [])], **extra)
        elif choice == "Tile":
            self.add(choice, [x, self.constant(np.array([1, *[self.chance.choice([1, 2]) for _ in rest]]))])
        elif self.opset >= 8:
            self.add(choice, [x, self.constant(np.array([1, 2, *shape[1:]][-len(shape) :]))])

    def draw_slice(self, x: str) -> None:
        axis, step = self.chance.randrange(1, self.values[x].ndim), self.chance.choice([1, 1, 2, -1])
        begin, end = (self.chance.choice([0, 1]), self.chance.choice([-1, 100])) if step > 0 else (-1, -100)
        if self.opset < 10:
            self.add("Slice", [x], starts=[begin], ends=[end], axes=[axis])
        else:
            self.add("Slice", [x, *(self.constant(np.array([value])) for value in (begin, end, axis, step))])

    def draw_concat(self, x: str) -> None:
        shape, axis = self.values[x].shape, self.chance.choice([1, -1])
        fits = [
            name
            for name, value in self.values.items()
            if value.dtype == np.float32
            and value.ndim == len(shape)
            and np.delete(value.shape, axis).tolist() == np.delete(shape, axis).tolist()
        ]
        self.add("Concat", [x, *self.chance.choices(fits, k=self.chance.choice([1, 2]))], axis=axis)

    def draw_split(self, x: str) -> None:
        axis = self.chance.choice([1, -1])
        length = self.values[x].shape[axis]
        if length < 2:
            return
        parts = [1, length - 1]
        if self.opset < 13:
            self.add("Split", [x], 2, axis=axis, split=parts)
        else:
            self.add("Split", [x, self.constant(np.array(parts))], 2, axis=axis)

    def draw_reduce(self, x: str) -> None:
        op = self.chance.choice(["Mean", "Mean", "Sum", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod"])
        axes = self.chance.choice([[1], [-1], list(range(1, self.values[x].ndim))])
        keep: dict[str, Any] = self.chance.choice([{}, {"keepdims": 0}])
        if self.opset >= (13 if op == "Sum" else 18):
            self.add(f"Reduce{op}", [x, self.constant(np.array(axes))], **keep)
        else:
            self.add(f"Reduce{op}", [x], axes=axes, **keep)

    def draw_norm(self, x: str) -> None:
        shape = self.values[x].shape
        channels = shape[1]
        scale, shift = (self.constant(self.normal(channels) + np.float32(k)) for k in (1.5, 0))
        choice = self.chance.choice(
            [
                "BatchNormalization",
                "InstanceNormalization",
                "LayerNormalization",
                "GroupNormalization",
                "RMSNormalization",
            ]
        )
        if choice == "BatchNormalization":
            mean, spread = (
                self.constant(self.normal(channels)),
                self.constant(np.abs(self.normal(channels)) + np.float32(0.2), shared=False),
            )
            self.add(choice, [x, scale, shift, mean, spread])
        elif choice == "GroupNormalization":
            groups = 2 if channels % 2 == 0 else 1
            if self.opset < 21:
                scale, shift = (self.constant(self.normal(groups) + np.float32(k)) for k in (1.5, 0))
            self.add(choice, [x, scale, shift], num_groups=groups)
        elif choice == "InstanceNormalization":
            self.add(choice, [x, scale, shift])
        else:
            parts = [self.constant(self.normal(shape[-1]) + np.float32(k)) for k in (1.5, 0)]
            self.add(choice, [x, *parts][: 2 if choice.startswith("RMS") else 3])

    def draw_resize(self, x: str) -> None:
        x = self.pick(4)
        if self.values[x].ndim != 4:
            return
        scales = np.array([1, 1, *self.chance.choice([(2, 2), (1.5, 1.25), (0.6, 0.7), (2, 1)])], np.float32)
        mode = self.chance.choice(["nearest", "linear"])
        if self.opset < 9:
            self.add("Upsample", [x], mode=mode, scales=scales.tolist())
        elif self.opset < 11:
            self.add(
                self.chance.choice(["Upsample", "Resize"]) if self.opset == 10 else "Upsample",
                [x, self.constant(scales)],
                mode=mode,
            )
        else:
            attributes: dict[str, Any] = {"mode": self.chance.choice([mode, "cubic"])}
            coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
            attributes["coordinate_transformation_mode"] = self.chance.choice(coordinates)
            if attributes["mode"] == "nearest":
                attributes["nearest_mode"] = self.chance.choice(
                    ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
                )
            region = "" if self.opset >= 13 else self.constant(np.zeros(0, np.float32), shared=False)
            self.add("Resize", [x, region, self.constant(scales, shared=False)], **attributes)

    def draw_gather(self, x: str) -> None:
        axis = self.chance.randrange(1, self.values[x].ndim)
        picked = np.array(self.chance.choice([[0, 0], [-1], 0, [[0, -1]]]))
        if self.chance.random() < 0.3:  # an embedding
            ids = self.add("ArgMax", [x], axis=axis, keepdims=0)
            if ids:
                self.add("Gather", [self.weight(self.values[x].shape[axis], 6), ids[0]], axis=0)
            return
        self.add("Gather", [x, self.constant(picked)], axis=axis)

    def draw_float16(self, x: str) -> None:
        half = self.add("Cast", [x], to=TensorProto.FLOAT16)
        if half is None:
            return
        op = self.chance.choice(["Relu", "Add", "MatMul", "Sigmoid"])
        if op == "MatMul":
            other = [self.constant(self.normal(self.values[x].shape[-1], 4, scale=0.3).astype(np.float16))]
        else:
            other = [self.constant(self.normal(1).astype(np.float16))] if op == "Add" else []
        made = self.add(op, [half[0], *other])
        self.add("Cast", made or half, to=TensorProto.FLOAT)

    def draw_branch(self, x: str) -> None:
        summed = self.add("ReduceMax", [x], keepdims=0) if self.batch == 1 else None
        held = summed and self.add("Less", [summed[0], self.constant(np.float32(2.5))])
        chosen = held[0] if held else self.constant(np.array(self.chance.random() < 0.5))
        branches, weight = {}, self.weight(self.values[x].shape[-1], 3)
        for key in ("then_branch", "else_branch"):
            names = [self.name(f"{key[:4]}{k}_{len(self.nodes)}") for k in range(2)]
            inner = [
                helper.make_node("MatMul", [x, weight], [names[0]], name="inner"),
                helper.make_node(self.chance.choice(["Relu", "Neg", "Tanh"]), [names[0]], [names[1]], name="inner"),
            ]
            branches[key] = helper.make_graph(
                inner, key, [], [helper.make_tensor_value_info(names[1], TensorProto.FLOAT, None)]
            )
        self.add("If", [chosen], **branches)

    def draw_recurrent(self, x: str) -> None:
        if self.values[x].ndim != 3:
            return
        steps = self.add("Transpose", [x], perm=[1, 0, 2]) if self.batch == 1 else None
        if steps is None:
            return
        op, gates = self.chance.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
        directions = self.chance.choice([1, 1, 2])
        hidden, last = 4, self.values[x].shape[-1]
        weights = [self.weight(directions, gates * hidden, length) for length in (last, hidden)]
        weights += [self.constant(self.normal(directions, 2 * gates * hidden))] * (self.chance.random() < 0.7)
        extra: dict[str, Any] = {"direction": "bidirectional"} if directions == 2 else {}
        extra |= {"linear_before_reset": 1} if op == "GRU" and self.chance.random() < 0.5 else {}
        self.add(op, [steps[0], *weights], hidden_size=hidden, **extra)

    def draw_where(self, x: str) -> None:
        held = self.add("Less", [x, self.constant(np.float32(0.2))])
        if held:
            self.add("Where", [held[0], x, self.constant(self.normal(1))])

    def draw_integers(self, x: str) -> None:
        self.add("ArgMax", [x], axis=self.chance.choice([1, -1]), keepdims=self.chance.choice([0, 1]))

    @property
    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        unread = [name for name in made if name not in read]
        extra = [name for name in made if name in read]
        outputs = [*unread, *self.chance.sample(extra, min(len(extra), self.chance.choice([0, 0, 1])))]
        kept = {name for node in self.nodes for name in names_read(node)}

        def info(name: str) -> onnx.ValueInfoProto:
            value = self.values[name]
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            if name in self.feeds:
                return helper.make_tensor_value_info(name, kind, [self.batch, *value.shape[1:]])
            return helper.make_tensor_value_info(name, kind, [None] * value.ndim)

        graph = helper.make_graph(
            self.nodes,
            "generated",
            [info(name) for name in self.feeds],
            [info(name) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in kept],
        )
        if self.chance.random() < 0.1 and self.opset < 21:  # initializers that are inputs, as older exporters have them
            graph.input.extend(
                helper.make_tensor_value_info(held.name, held.data_type, list(held.dims)) for held in graph.initializer
            )
        ir_version = self.chance.choice([4, 7]) if self.opset < 13 else 8 if self.opset < 19 else 10
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=ir_version)
