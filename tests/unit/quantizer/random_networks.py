"""Random small networks of the operators that the quantizer treats in its own way, wired at random."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, int, int]  # channels, height, width; the batch is dynamic
_LARGEST = 10


class RandomNetwork:
    """Builds one model from a seed; ``model`` and ``inputs`` hold the result."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._count = 0
        self.inputs = ["x", "z"] if self._random.random() < 0.2 else ["x"]
        self._tensors: list[tuple[str, Shape]] = [(name, (3, 8, 8)) for name in self.inputs]
        builders: list[Callable[[str, Shape], None]] = [
            *[self._convolve] * 5,
            self._depthwise,
            self._transposed,
            *[self._elementwise] * 4,
            *[self._combine] * 3,
            self._with_constant,
            self._batchnorm,
            *[self._move] * 3,
            self._resample,
            self._split,
            self._branch,
        ]
        while len(self._tensors) < len(self.inputs) + self._random.randint(3, 12):
            self._random.choice(builders)(*self._random.choice(self._tensors[-4:]))
        self.model = self._finish()

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _constant(self, array: np.ndarray) -> str:
        name = self._name()
        self._constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _normal(self, *shape: int, scale: float = 1.0) -> str:
        return self._constant((self._numbers.standard_normal(shape) * scale).astype(np.float32))

    def _add(
        self, op: str, inputs: list[str], shape: Shape | None, outputs: int = 1, **attributes: object
    ) -> list[str]:
        names = [self._name() for _ in range(outputs)]
        node_name = self._name() if self._random.random() < 0.8 else ""
        self._nodes.append(helper.make_node(op, inputs, names, name=node_name, **attributes))
        if shape is not None:
            self._tensors += [(name, shape) for name in names]
        return names

    def _convolve(self, tensor: str, shape: Shape) -> None:
        group = self._random.choice([1, 1, 2]) if shape[0] % 2 == 0 else 1
        made, kernel = self._random.choice([2, 4, 6]), self._random.choice([1, 3])
        inputs = [tensor, self._normal(made, shape[0] // group, kernel, kernel, scale=0.5)]
        inputs += [self._normal(made)] * (self._random.random() < 0.6)
        self._add("Conv", inputs, (made, *shape[1:]), group=group, pads=[kernel // 2] * 4)

    def _depthwise(self, tensor: str, shape: Shape) -> None:
        self._add("Conv", [tensor, self._normal(shape[0], 1, 1, 1)], shape, group=shape[0])

    def _transposed(self, tensor: str, shape: Shape) -> None:
        if shape[1] <= _LARGEST // 2:
            doubled = (3, shape[1] * 2, shape[2] * 2)
            self._add("ConvTranspose", [tensor, self._normal(shape[0], 3, 2, 2, scale=0.5)], doubled, strides=[2, 2])

    def _elementwise(self, tensor: str, shape: Shape) -> None:
        op = self._random.choice(["Relu", "Clip", "Sigmoid", "LeakyRelu", "Tanh", "Neg", "Identity"])
        limits = [self._constant(np.float32(value)) for value in (self._random.choice([0, -1]), 6)]
        self._add(op, [tensor, *(limits if op == "Clip" else [])], shape)

    def _combine(self, tensor: str, shape: Shape) -> None:
        other, other_shape = self._random.choice([pair for pair in self._tensors if pair[1][1:] == shape[1:]])
        if other_shape == shape and self._random.random() < 0.7:
            self._add(self._random.choice(["Add", "Mul"]), [tensor, other], shape)
        elif shape[0] + other_shape[0] <= _LARGEST:
            self._add("Concat", [tensor, other], (shape[0] + other_shape[0], *shape[1:]), axis=1)

    def _with_constant(self, tensor: str, shape: Shape) -> None:
        constant = self._normal(*self._random.choice([(shape[0], 1, 1), (1, shape[0], 1, 1), (1,), ()]))
        self._add(self._random.choice(["Add", "Mul"]), self._random.sample([tensor, constant], 2), shape)

    def _batchnorm(self, tensor: str, shape: Shape) -> None:
        parts = [self._constant(self._numbers.uniform(0.5, 2, shape[0]).astype(np.float32)) for _ in range(4)]
        self._add("BatchNormalization", [tensor, *parts], shape)

    def _move(self, tensor: str, shape: Shape) -> None:
        channels, height, width = shape
        move = self._random.choice(["Transpose", "Slice", "Reshape", "Pad"])
        if move == "Transpose":
            self._add(move, [tensor], (channels, width, height), perm=[0, 1, 3, 2])
        elif move == "Reshape":
            self._add(move, [tensor, self._constant(np.array([0, channels, width, height]))], (channels, width, height))
        elif move == "Slice" and height > 2:
            limits = [self._constant(np.array([value])) for value in (1, height, 2)]
            self._add(move, [tensor, *limits], (channels, height - 1, width))
        elif move == "Pad" and height < _LARGEST - 2:
            self._add(move, [tensor, self._constant(np.array([0, 0, 1, 0, 0, 0, 1, 0]))], (channels, height + 2, width))

    def _resample(self, tensor: str, shape: Shape) -> None:
        channels, height, width = shape
        if self._random.random() < 0.3:
            self._add("GlobalAveragePool", [tensor], (channels, 1, 1))
        elif min(height, width) > 1:
            op = self._random.choice(["MaxPool", "AveragePool"])
            self._add(op, [tensor], (channels, height // 2, width // 2), kernel_shape=[2, 2], strides=[2, 2])
        elif height <= _LARGEST // 2:
            scales = self._constant(np.array([1, 1, 2, 2], np.float32))
            self._add("Resize", [tensor, "", scales], (channels, 2 * height, 2 * width), mode="linear")

    def _split(self, tensor: str, shape: Shape) -> None:
        if shape[0] % 2 == 0:
            half = shape[0] // 2
            self._add("Split", [tensor, self._constant(np.array([half, half]))], (half, *shape[1:]), outputs=2, axis=1)

    def _branch(self, tensor: str, shape: Shape) -> None:
        branches = {}
        for key, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
            name = self._name()
            node = helper.make_node(op, [tensor], [name], name="same")
            output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            branches[key] = helper.make_graph([node], key, [], [output])
        self._add("If", [self._constant(np.array(self._random.random() < 0.5))], shape, **branches)

    def _finish(self) -> onnx.ModelProto:
        made = self._tensors[len(self.inputs) :]
        outputs = [made[-1][0], *self._random.sample([name for name, _ in made[:-1]], min(len(made) - 1, 1))]
        if self._random.random() < 0.4:
            (flat,) = self._add("Flatten", [outputs[0]], None)
            weight = self._normal(int(np.prod(made[-1][1])), 5, scale=0.3)
            bias = [self._normal(5)] * (self._random.random() < 0.5)
            outputs[0] = self._add("Gemm", [flat, weight, *bias], None)[0]
        graph = helper.make_graph(
            self._nodes,
            "random",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3, 8, 8]) for name in self.inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self._constants,
        )
        opset = self._random.choice([13, 17, 18, 21])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
