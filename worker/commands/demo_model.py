"""Trains the demo's model: ``python -m worker.commands.demo_model FOLDER``.

Runs in a process of its own, because torch must not be loaded where other processes are started. Writes into FOLDER:

    digits.onnx         float32 depthwise-separable CNN, input ``image`` [batch, 1, 8, 8], output ``logits`` [batch, 10]
    calibration.npz     ``image`` uint8 [256, 8, 8], from the training part
    evaluation.npz      ``image`` uint8 [450, 8, 8] and ``labels`` int64 [450], never trained on
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

SEED = 0
EPOCHS = 8
BATCH = 64
HELD_OUT = 450
CALIBRATION_SAMPLES = 256
OPSET = 17
INPUT = "image"


def separable(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    """Depthwise 3x3 convolution, then pointwise, each with batch normalization and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_in, 3, stride, 1, groups=channels_in, bias=False),
        nn.BatchNorm2d(channels_in),
        nn.ReLU(),
        nn.Conv2d(channels_in, channels_out, 1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def build() -> nn.Sequential:
    """The untrained network, about 90 thousand parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        separable(32, 96, 1),
        separable(96, 192, 2),
        separable(192, 320, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(320, 10),
    )


def train(images: np.ndarray, labels: np.ndarray, make: Callable[[], nn.Sequential] = build) -> nn.Sequential:
    """Train what ``make`` gives on ``images`` uint8 [n, 8, 8] in 0..16 and ``labels`` int64 [n]; seeded.

    On one thread: the network is small, threads would mostly wait for one another, and sums keep their order.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    network = make()
    inputs = torch.from_numpy(images.astype(np.float32)[:, None] / 16)
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    steps = EPOCHS * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.008, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(inputs)), BATCH):
            optimizer.zero_grad()
            loss_of(network(inputs[rows]), targets[rows]).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def export(network: nn.Module, path: Path) -> None:
    """Write the network as ONNX with a dynamic batch."""
    with warnings.catch_warnings():
        # The TorchScript exporter announces its retirement; it needs no package beyond torch.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(1, 1, 8, 8),),
            str(path),
            input_names=[INPUT],
            output_names=["logits"],
            dynamic_axes={INPUT: {0: "batch"}, "logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )


def main(folder: Path, make: Callable[[], nn.Sequential] = build) -> None:
    """Train what ``make`` gives, export it, and store the data."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = digits.images.astype(np.uint8)[order]
    labels = digits.target.astype(np.int64)[order]
    network = train(images[HELD_OUT:], labels[HELD_OUT:], make)
    export(network, folder / "digits.onnx")
    np.savez(folder / "calibration.npz", **{INPUT: images[HELD_OUT : HELD_OUT + CALIBRATION_SAMPLES]})
    np.savez(folder / "evaluation.npz", **{INPUT: images[:HELD_OUT], "labels": labels[:HELD_OUT]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
