"""ResNet20 in brevitas, trained on what benchmarks.qat_brevitas writes; needs brevitas, torch and numpy alone.

usage: python benchmarks/qat_brevitas_peer.py MATERIAL.npz usual|ours learned|stats SEED THREADS

The last line that it prints is its figures as JSON.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
import time
from typing import Any

import brevitas.nn as qnn
import numpy as np
import torch
from brevitas.graph.calibrate import calibration_mode, quantization_status_manager
from brevitas.quant.scaled_int import Int8WeightPerChannelFloat, Uint8ActPerTensorFloat
from brevitas.quant.shifted_scaled_int import ShiftedUint8ActPerTensorFloat
from torch import Tensor, nn
from torch.nn import functional

BITS, INPUT_BITS, BATCH = 4, 8, 32
USUAL_RATE, RELATIVE_RATE, LEAST_SIZE = 1e-3, 3e-3, 1e-2
WARMUP, FINAL, CLIP = 0.05, 0.01, 1.0
# Float results of both sides agree up to the order of additions.
_SAME_LOGITS = 1e-2

Parameters = dict[str, np.ndarray]


class Layers:
    """Makes layers with the parameters of a file, and quantizers of the wanted kind."""

    def __init__(self, held: Parameters, scales: str) -> None:
        self._held = held
        kind = "parameter_from_stats" if scales == "learned" else "stats"
        self._weight = {
            "weight_quant": Int8WeightPerChannelFloat,
            "weight_bit_width": BITS,
            "weight_scaling_impl_type": kind,
        }

    def conv(self, name: str, stride: int) -> nn.Module:
        weight = self._held[f"weight:{name}.weight"]
        layer = qnn.QuantConv2d(weight.shape[1], weight.shape[0], 3, stride, padding=1, bias=True, **self._weight)
        return self._filled(layer, weight, self._held[f"weight:{name}.weight_bias"])

    def linear(self, name: str) -> nn.Module:
        weight = self._held[f"weight:{name}.weight"]
        layer = qnn.QuantLinear(weight.shape[1], weight.shape[0], bias=True, **self._weight)
        return self._filled(layer, weight, self._held[f"weight:{name}.bias"])

    def relu(self) -> nn.Module:
        """Relu with learned scales, zero point 0."""
        return qnn.QuantReLU(act_quant=Uint8ActPerTensorFloat, bit_width=BITS)

    def round(self, bits: int) -> nn.Module:
        """An asymmetric grid."""
        return qnn.QuantIdentity(act_quant=ShiftedUint8ActPerTensorFloat, bit_width=bits)

    @staticmethod
    def _filled(layer: Any, weight: np.ndarray, bias: np.ndarray) -> nn.Module:
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
            # Scales that are parameters begin with the weights as they now are.
            layer.weight_quant.init_tensor_quant()
        return layer


class Block(nn.Module):
    """Two convolutions and a shortcut that has no parameters: every second pixel, channels of zeros around."""

    def __init__(self, layers: Layers, name: str, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = layers.conv(f"{name}.conv1", stride), layers.conv(f"{name}.conv2", 1)
        self.relu1, self.relu2, self.sum = layers.relu(), layers.relu(), layers.round(BITS)
        self.stride = stride

    def forward(self, values: Tensor) -> Tensor:
        made = self.sum(self.conv2(self.relu1(self.conv1(values))))
        if self.stride != 1:
            around = values.shape[1] // 2
            values = functional.pad(values[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, around, around))
        return self.relu2(made + values)


class ResNet20(nn.Module):
    """[n,3,32,32] -> logits [n,10]."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.input, self.conv1, self.relu = layers.round(INPUT_BITS), layers.conv("conv1", 1), layers.relu()
        places = [(stage, block) for stage in (1, 2, 3) for block in range(3)]
        self.blocks = nn.Sequential(
            *(Block(layers, f"layer{stage}.{block}", 2 if stage > 1 and not block else 1) for stage, block in places)
        )
        self.linear = layers.linear("linear")

    def forward(self, pictures: Tensor) -> Tensor:
        made = self.blocks(self.relu(self.conv1(self.input(pictures))))
        return self.linear(made.mean(dim=(2, 3)))


def check_float(network: nn.Module, pictures: Tensor, logits: Tensor) -> None:
    """Without quantizers it must be the network that the logits are of."""
    off = {"disable_act_quant": True, "disable_weight_quant": True, "disable_bias_quant": True}
    with torch.no_grad(), quantization_status_manager(network, **off):
        farthest = float((network(pictures) - logits).abs().max())
    if farthest > _SAME_LOGITS:
        raise RuntimeError(f"the rebuilt network is another one: logits differ by {farthest}")


def groups_of(network: nn.Module, rate: str) -> list[dict[str, Any]]:
    """Parameters with their peak rates."""
    tensors = [tensor for tensor in network.parameters() if tensor.requires_grad]
    if rate == "usual":
        return [{"params": tensors, "lr": USUAL_RATE, "peak": USUAL_RATE}]
    sizes = [float(tensor.detach().square().mean().sqrt()) for tensor in tensors]
    usual = sum(sizes) / len(sizes)
    peaks = [RELATIVE_RATE * max(size, LEAST_SIZE * usual) for size in sizes]
    return [{"params": [tensor], "lr": peak, "peak": peak} for tensor, peak in zip(tensors, peaks, strict=True)]


def factor_of(step: int, total: int) -> float:
    """Rises evenly, then falls on half a cosine."""
    rising = round(WARMUP * total)
    warm = min(1.0, (step + 1) / (rising + 1))
    progress = max(step - rising, 0) / max(total - 1 - rising, 1)
    return warm * (FINAL + (1.0 - FINAL) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the softmax, mean over samples."""
    target = functional.log_softmax(teacher, -1)
    return functional.kl_div(functional.log_softmax(student, -1), target, reduction="batchmean", log_target=True)


@torch.no_grad()
def outputs(network: nn.Module, pictures: Tensor) -> Tensor:
    network.eval()
    made = torch.cat([network(part) for part in pictures.split(100)])
    network.train()
    return made


def main() -> None:
    path, rate, scales, seed, threads = sys.argv[1:6]
    torch.set_num_threads(int(threads))
    torch.manual_seed(int(seed))
    with np.load(path) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    tensors = {name: torch.from_numpy(array) for name, array in held.items() if not name.startswith("weight:")}
    train, teacher, order = tensors["train"], tensors["train_logits"], held["order"]

    def top1() -> float:
        made = outputs(network, tensors["evaluation"]).argmax(1)
        return 100.0 * float((made == tensors["evaluation_labels"]).float().mean())

    def held_loss() -> float:
        return float(distance(outputs(network, tensors["held"]), tensors["held_logits"]))

    network = ResNet20(Layers(held, scales))
    network.eval()
    check_float(network, tensors["held"], tensors["held_logits"])
    network.train()
    with torch.no_grad(), calibration_mode(network):
        for part in train.split(BATCH):
            network(part)
    optimizer = torch.optim.Adam(groups_of(network, rate))
    before, best, best_loss = top1(), copy.deepcopy(network.state_dict()), held_loss()
    best_epoch, step, seconds = 0, 0, []
    total = len(order) * math.ceil(len(train) / BATCH)
    for epoch, numbers in enumerate(order):
        for first in range(0, len(numbers), BATCH):
            began = time.monotonic()
            chosen = torch.from_numpy(numbers[first : first + BATCH])
            distance(network(train[chosen]), teacher[chosen]).backward()
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor_of(step, total)
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds.append(time.monotonic() - began)
            step += 1
        loss = held_loss()
        if loss < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(network.state_dict()), loss, epoch + 1
    last = top1()
    network.load_state_dict(best)
    figures = {
        "before": before,
        "last": last,
        "top1": top1(),
        "best_epoch": best_epoch,
        "steps": step,
        "seconds_a_step": statistics.median(seconds),
        "samples": len(tensors["evaluation"]),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
