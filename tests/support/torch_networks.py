"""Networks of PyTorch with random weights, of the structure of torchvision's and under its names, but narrow.

mobilenet_v3_small: every block, width 1/4. swin: two blocks of one stage, the second shifted, with the
merging of patches behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    act: Callable[[], nn.Module] | None = None,
) -> nn.Sequential:
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*parts, *([act()] if act is not None else []))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(4, channels // 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x


class InvertedResidual(nn.Module):
    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        stride: int,
        act: Callable[[], nn.Module] = nn.ReLU6,
        kernel: int = 3,
        squeeze: bool = False,
    ) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == outputs
        layers: list[nn.Module] = [conv_norm(inputs, hidden, 1, act=act)] if hidden != inputs else []
        layers.append(conv_norm(hidden, hidden, kernel, stride, hidden, act=act))
        if squeeze:
            layers.append(SqueezeExcitation(hidden))
        self.block = nn.Sequential(*layers, conv_norm(hidden, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.use_res_connect else self.block(x)


class MobileNetV3Small(nn.Module):
    SETTING = (
        (16, 3, 16, 16, True, False, 2), (16, 3, 72, 24, False, False, 2), (24, 3, 88, 24, False, False, 1),
        (24, 5, 96, 40, True, True, 2), (40, 5, 240, 40, True, True, 1), (40, 5, 240, 40, True, True, 1),
        (40, 5, 120, 48, True, True, 1), (48, 5, 144, 48, True, True, 1), (48, 5, 288, 96, True, True, 2),
        (96, 5, 576, 96, True, True, 1), (96, 5, 576, 96, True, True, 1),
    )  # fmt: skip

    def __init__(self, divisor: int = 4, classes: int = 10) -> None:
        super().__init__()
        features: list[nn.Module] = [conv_norm(3, 16 // divisor, 3, 2, act=nn.Hardswish)]
        for inputs, kernel, hidden, outputs, squeeze, hard, stride in self.SETTING:
            widths = (inputs // divisor, hidden // divisor, outputs // divisor)
            act = nn.Hardswish if hard else nn.ReLU
            features.append(InvertedResidual(*widths, stride, act, kernel, squeeze))
        features.append(conv_norm(96 // divisor, 576 // divisor, 1, act=nn.Hardswish))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(576 // divisor, 1024 // divisor), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True),
            nn.Linear(1024 // divisor, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class MLPBlock(nn.Sequential):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__(
            nn.Linear(channels, hidden), nn.GELU(), nn.Dropout(0.0), nn.Linear(hidden, channels), nn.Dropout(0.0)
        )


class ShiftedWindowAttention(nn.Module):
    """As torchvision's shifted_window_attention, window and shift fixed."""

    def __init__(self, channels: int, window: int, shift: int, heads: int) -> None:
        super().__init__()
        self.window, self.shift, self.heads = window, shift, heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads).normal_(std=0.5))
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer(
            "relative_position_index", (relative[..., 0] * (2 * window - 1) + relative[..., 1]).flatten()
        )

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        size, area = self.window, self.window**2
        if self.shift:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = (h // size) * (w // size)
        x = x.view(n, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(n * windows, area, c)
        qkv = self.qkv(x).reshape(x.size(0), area, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * (c // self.heads) ** -0.5, qkv[1], qkv[2]
        attention = q.matmul(k.transpose(-2, -1))
        bias = self.relative_position_bias_table[self.relative_position_index].view(area, area, -1)
        attention = attention + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if self.shift:
            mask = self._mask(x, h, w)
            attention = attention.view(n, windows, self.heads, area, area) + mask.unsqueeze(1).unsqueeze(0)
            attention = attention.view(-1, self.heads, area, area)
        x = F.softmax(attention, dim=-1).matmul(v).transpose(1, 2).reshape(x.size(0), area, c)
        x = self.proj(x).view(n, h // size, w // size, size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2)) if self.shift else x

    def _mask(self, x: Tensor, h: int, w: int) -> Tensor:
        size, mask = self.window, x.new_zeros((h, w))
        slices = ((0, -size), (-size, -self.shift), (-self.shift, None))
        for i, rows in enumerate(slices):
            for j, columns in enumerate(slices):
                mask[rows[0] : rows[1], columns[0] : columns[1]] = 3 * i + j
        mask = mask.view(h // size, size, w // size, size).permute(0, 2, 1, 3).reshape(-1, size * size)
        mask = mask.unsqueeze(1) - mask.unsqueeze(2)
        return mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)


class SwinBlock(nn.Module):
    def __init__(self, channels: int, window: int, shift: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-5)
        self.attn = ShiftedWindowAttention(channels, window, shift, heads)
        self.norm2 = nn.LayerNorm(channels, eps=1e-5)
        self.mlp = MLPBlock(channels, 4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    """A patch embedding, one stage of two blocks, the merging of patches, and a classifier."""

    def __init__(self, channels: int = 32, window: int = 4, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, channels, 4, 4)
        self.features = nn.Sequential(
            SwinBlock(channels, window, 0, heads), SwinBlock(channels, window, window // 2, heads)
        )
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)
        self.norm = nn.LayerNorm(4 * channels)
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.embed(x).permute(0, 2, 3, 1))
        parts = [x[..., i::2, j::2, :] for j in (0, 1) for i in (0, 1)]
        x = self.reduction(self.norm(torch.cat(parts, -1)))
        return self.head(x.mean(dim=(1, 2)))


class TextEncoder(nn.Module):
    """Token ids -> two layers of nn.TransformerEncoder -> scores."""

    def __init__(self, words: int = 100, length: int = 12, channels: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, channels)
        self.position = nn.Parameter(torch.empty(length, channels).normal_(std=0.5))
        layer = nn.TransformerEncoderLayer(channels, 4, 64, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.encoder(self.embedding(ids) + self.position).mean(dim=1))


def made(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network with random weights, in eval mode.

    Signals keep their size, and blocks end in weak norms: a deep random network would amplify every disturbance.
    """
    torch.manual_seed(seed)
    module = build()
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_var is not None
            part.running_var.uniform_(0.8, 1.2)
            nn.init.uniform_(part.weight, 0.8, 1.2)
            nn.init.normal_(part.bias, 0, 0.2)
    for part in module.modules():
        if isinstance(part, InvertedResidual):
            norms = [inner for inner in part.modules() if isinstance(inner, nn.BatchNorm2d)]
            norms[-1].weight.data *= 0.6
    return module.eval()


def images(samples: int, size: int = 64, seed: int = 1) -> Tensor:
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(seed))


def batches(samples: Sequence[Tensor] | Tensor, size: int = 8) -> list[Tensor]:
    return list(torch.split(torch.as_tensor(samples), size))
