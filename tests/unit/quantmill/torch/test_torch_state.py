"""A module that was trained on: its state fills the graph that it was exported to."""

from __future__ import annotations

import onnxruntime
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quantmill.torch import export
from tests.support.torch_networks import images
from worker.quantizer.intake.made import fill


class Net(nn.Module):
    """A convolution with BatchNorm, a Linear, a scalar, a tied matrix and a buffer that no state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.encode = nn.Linear(4, 6, bias=False)
        self.decode = nn.Linear(4, 6)
        self.decode.weight = self.encode.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.arange(6.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return (self.encode(x) + self.decode(x)) * self.scale + self.offset


def train(module: nn.Module, x: Tensor) -> None:
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
    module.eval()


def test_the_state_of_a_retrained_module_gives_its_outputs(tmp_path):
    torch.manual_seed(0)
    module, x = Net().eval(), images(6, 8)
    before = module(x).detach()
    exported = export(module, x, tmp_path / "net.onnx")
    train(module, x)
    expected = module(x).detach()
    assert (expected - before).abs().max() > 0.01
    # safetensors keeps one name of a shared tensor
    state = {name: tensor for name, tensor in module.state_dict().items() if name != "encode.weight"}
    save_file(state, tmp_path / "new.safetensors")
    (made,) = fill(exported.onnx_path, tmp_path / "new.safetensors", tmp_path / "made.onnx")
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)
