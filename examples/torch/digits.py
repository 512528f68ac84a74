"""What the examples share: scikit-learn's digits, a small network, its training and its accuracy."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

_SEED = 0
_TRAINED_ON = 1200


class InvertedResidual(nn.Module):
    """MobileNetV2's block: widen, filter channel by channel, narrow, and add what came in where that fits."""

    def __init__(self, inputs: int, outputs: int, stride: int, widened: int = 4) -> None:
        super().__init__()
        inner = inputs * widened
        self.adds = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""
        made: Tensor = self.layers(x)
        return x + made if self.adds else made


def stem() -> nn.Sequential:
    """[N, 1, 8, 8] -> [N, 16, 8, 8]."""
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())


def head() -> nn.Sequential:
    """[N, 32, 4, 4] -> [N, 10]."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class MobileNet(nn.Module):
    """A network like MobileNetV2 for pictures of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = stem()
        self.blocks = nn.Sequential(InvertedResidual(16, 32, 2), InvertedResidual(32, 32, 1))
        self.head = head()

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 8, 8] in [0, 1] -> scores [N, 10]."""
        scores: Tensor = self.head(self.blocks(self.stem(x)))
        return scores


def load_data(
    train: bool = True, batch_size: int = 64, subset_len: int | None = None
) -> DataLoader[tuple[Tensor, ...]]:
    """Digits, 8 x 8 pixels in [0, 1], with their labels: 1200 to train with, 597 others to judge by."""
    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(_SEED))
    chosen = (order[:_TRAINED_ON] if train else order[_TRAINED_ON:])[:subset_len]
    images = torch.from_numpy(digits.images / 16.0).float().unsqueeze(1)
    data = TensorDataset(images[chosen], torch.from_numpy(digits.target)[chosen])
    return DataLoader(data, batch_size=batch_size)


def train(network: nn.Module, epochs: int = 6) -> None:
    """Train until most digits are known; a few seconds."""
    torch.manual_seed(_SEED)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    loss_fn = nn.CrossEntropyLoss()
    network.train()
    for _ in range(epochs):
        for images, labels in load_data():
            optimizer.zero_grad()
            loss_fn(network(images), labels).backward()
            optimizer.step()
    network.eval()


def trained(network: nn.Module, path: Path) -> nn.Module:
    """``network`` with the parameters of ``path``; trained first if there is no such file."""
    if not path.exists():
        train(network)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), path)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], loss_fn: nn.Module) -> tuple[float, float]:
    """Share of digits that are recognized, and the mean loss."""
    right, loss, seen = 0, 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            scores = model(images)
            right += int((scores.argmax(1) == labels).sum())
            loss += float(loss_fn(scores, labels)) * len(labels)
            seen += len(labels)
    return right / seen, loss / seen
