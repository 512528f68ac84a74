"""Selectors by module on what the exporter writes, before and after preparation, in networks of three kinds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from quantmill.torch import export
from service.contracts.preparation import PreparationSpec
from service.contracts.selectors import ModuleSelector
from tests.support.torch_networks import BasicBlock, MLPBlock, TextEncoder, images, made
from worker.quantizer.plan.selection import Matcher
from worker.quantizer.preparation.prepare import prepare

# Operators that make up layers; what goes around them depends on the exporter.
LAYERS = {"Conv", "Gemm", "MatMul", "Relu", "Clip", "Gelu", "LayerNormalization", "Softmax"}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, bias=False)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 16, 2))
        self.layer10 = nn.Sequential(nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16))
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer10(self.layer1(self.relu(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class HandNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels) * 1.5), nn.Parameter(torch.zeros(channels) + 0.1)

    def forward(self, x: Tensor) -> Tensor:
        d = x - x.mean(-1, keepdim=True)
        return d / torch.sqrt((d**2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class HandGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))


class Repeated(nn.Module):
    """One module called three times; containers within containers; norms and Gelu written out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 6), nn.Sequential(HandGelu(), nn.Linear(6, 6)))
        self.tails = nn.ModuleList([nn.ModuleList([MLPBlock(6, 12), HandNorm(6)]), nn.ModuleList([nn.Linear(6, 6)])])

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        for group in self.tails:
            for part in group:
                x = part(x)
        return x


NETWORKS: dict[str, tuple[Any, Tensor]] = {
    "residual": (Residual, images(2, 16)), "encoder": (TextEncoder, torch.randint(0, 100, (2, 12))),
    "repeated": (Repeated, torch.randn(2, 6)),
}  # fmt: skip
# The attention's last projection is computed on [words * batch, channels], so it is a Gemm.
ATTENTION = {"MatMul": 5, "Gemm": 1, "Softmax": 1, "LayerNormalization": 2, "Gelu": 1}
SELECTED = [
    ("residual", "relu", {"Relu": 1}), ("residual", "layer1", {"Conv": 5, "Relu": 4}),
    ("residual", "layer1.1.downsample", {"Conv": 1}), ("residual", "layer1.0.relu", {"Relu": 2}),
    ("residual", "layer10", {"Conv": 1}), ("residual", "fc", {"Gemm": 1}), ("residual", "conv2d", {}),
    ("residual", "layer", {}), ("encoder", "encoder.layers", {name: 2 * count for name, count in ATTENTION.items()}),
    ("encoder", "encoder.layers.1", ATTENTION),
    ("encoder", "encoder.layers.0.self_attn", {"MatMul": 3, "Gemm": 1, "Softmax": 1}),
    ("repeated", "layer.1", {"Gemm": 3, "Gelu": 3}), ("repeated", "layer.1.0", {"Gelu": 3}),
    ("repeated", "tails", {"Gemm": 3, "Gelu": 1, "LayerNormalization": 1}),
    ("repeated", "tails.0.1", {"LayerNormalization": 1}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("network", ["residual", "encoder", pytest.param("repeated", marks=pytest.mark.long)])
def test_who_is_meant_after_preparation(network, tmp_path):
    build, inputs = NETWORKS[network]
    path = export(made(build), inputs, tmp_path / "net.onnx").onnx_path
    for opset in (17, 21):  # as most recipes prepare it, and as those do that need the opset of 16-bit types
        graph = prepare(ir.load(path), PreparationSpec(), opset=opset).graph
        assert graph.opset_imports[""] == max(opset, 20)
        assert [node.name for node in graph if "pkg.torch.onnx.name_scopes" not in node.metadata_props] == []
        for _, module, expected in (row for row in SELECTED if row[0] == network):
            chosen = Matcher(graph).nodes(ModuleSelector(module=module))
            counts = Counter(node.op_type for node in graph if node.name in chosen and node.op_type in LAYERS)
            assert counts == expected, module
