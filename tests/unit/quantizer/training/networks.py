"""A small network that has learned something, its data, and drafts of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from tests.unit.quantizer.toolbox import Arrays, config, make_model, write_npz
from worker.quantizer.pipeline import Quantizing, fill
from worker.quantizer.run.interface import SilentRun

TEXT = """(float[N,1,8,8] x) => (float[N,4] y) {
    [first] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    [relu] r = Relu (a)
    [depthwise] d = Conv <group = 6, pads = [1, 1, 1, 1]> (r, w2, b2)
    [clip] c = Clip (d, low, high)
    [point] p = Conv (c, w3, b3)
    [add] s = Add (p, r)
    [pool] g = GlobalAveragePool (s)
    [flat] f = Flatten (g)
    [fc] y = Gemm <transB = 1> (f, w4, b4)
}"""
SHAPES = {"w1": (6, 1, 3, 3), "w2": (6, 1, 3, 3), "w3": (6, 6, 1, 1), "w4": (4, 6)}


def pictures(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Stripes, columns, squares or nothing under noise, and which of them it is."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, samples)
    rows, columns = np.indices((8, 8)) % 2 * 2.0 - 1.0
    patterns = np.stack([rows, columns, rows * columns, np.zeros((8, 8))])
    noise = random.standard_normal((samples, 1, 8, 8))
    return (patterns[labels][:, None] * 0.8 + noise).astype(np.float32), labels.astype(np.int64)


@cache
def trained() -> onnx.ModelProto:
    """The network, trained by torch for a moment; not to be changed."""
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) * (2.0 / np.prod(shape[1:])) ** 0.5 for name, shape in SHAPES.items()}
    weights |= {f"b{k}": torch.zeros(shape[0]) for k, shape in enumerate(SHAPES.values(), 1)}
    for tensor in weights.values():
        tensor.requires_grad_()
    images, labels = (torch.from_numpy(array) for array in pictures(512))
    optimizer = torch.optim.Adam(weights.values(), lr=0.02)
    functional = torch.nn.functional
    for _ in range(60):
        r = torch.relu(functional.conv2d(images, weights["w1"], weights["b1"], padding=1))
        c = functional.conv2d(r, weights["w2"], weights["b2"], padding=1, groups=6).clamp(0.0, 6.0)
        s = functional.conv2d(c, weights["w3"], weights["b3"]) + r
        y = functional.linear(s.mean((2, 3)), weights["w4"], weights["b4"])
        loss = functional.cross_entropy(y, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    arrays |= {"low": np.float32(0.0), "high": np.float32(6.0)}
    return make_model(TEXT, arrays)


def filled(folder: Path, model: onnx.ModelProto, arrays: Arrays | None = None, **settings: Any) -> Quantizing:
    """The model with its plan filled, ready to be trained; on pictures unless other ``arrays`` are given."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if arrays is None:
        images, labels = pictures(48, seed=1)
        arrays = {"x": images, "labels": labels}
    source = write_npz(folder / "calibration.npz", **arrays)
    return fill(path, config(**{"preset": "int8", **settings}), source, run=SilentRun(), threads=1)
