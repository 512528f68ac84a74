"""Archives of torch.export: the same numbers and names as ONNX, and refusals in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from service.contracts.errors import ProgramError
from service.contracts.runner import InspectModelTask
from worker.quantizer.intake.made import fill, validate


class Net(nn.Module):
    """Two inputs, a dict of two results, BatchNorm, and a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        pooled = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return {"scores": self.fc(self.drop(pooled)) * scale, "pooled": pooled}


EXAMPLE = (torch.randn(2, 3, 8, 8), torch.randn(5))


def saved(module: nn.Module, path: Path, example: Any = EXAMPLE) -> Path:
    shapes = ({0: torch.export.Dim("n")}, *[None for _ in example[1:]])
    torch.export.save(torch.export.export(module, example, dynamic_shapes=shapes), path)
    return path


def made(path: Path, folder: Path) -> tuple[Path, Any]:
    folder.mkdir()
    result = validate(InspectModelTask(model_path=str(path), format="pt2", output_dir=str(folder), threads=1))
    return folder / result.files[0].file, result


def run(model: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {entry.name: tensor.numpy() for entry, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feeds)]


@pytest.mark.slow
def test_the_program_becomes_a_model_that_computes_the_same_and_takes_new_weights(tmp_path):
    torch.manual_seed(0)
    module = Net().eval()
    model, result = made(saved(module, tmp_path / "net.pt2"), tmp_path / "out")
    assert [entry.name for entry in result.summary.inputs] == ["x", "scale"]
    assert [entry.name for entry in result.summary.outputs] == ["scores", "pooled"]
    inputs = (torch.randn(7, 3, 8, 8), torch.randn(5))
    for found, expected in zip(run(model, *inputs), module(*inputs).values(), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
    assert str(Path(__file__).parent).encode() not in model.read_bytes()
    torch.nn.init.normal_(module.fc.weight)
    save_file(module.state_dict(), tmp_path / "new.safetensors")
    (filled,) = fill(model, tmp_path / "new.safetensors", tmp_path / "filled.onnx")
    torch.testing.assert_close(run(filled, *inputs)[0], module(*inputs)["scores"].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.Dropout(0.5)], ids=lambda layer: type(layer).__name__)
def test_what_was_exported_in_training_mode_is_refused(tmp_path, layer):
    module = nn.Sequential(nn.Linear(4, 4), layer).train()
    with pytest.raises(ProgramError, match="training mode") as caught:
        made(saved(module, tmp_path / "train.pt2", (torch.randn(2, 4),)), tmp_path / "out")
    assert "eval()" in (caught.value.hint or "")


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "net.pt2").write_bytes(b"PK no archive")
    with pytest.raises(ProgramError, match=r"torch\.export\.load") as caught:
        made(tmp_path / "net.pt2", tmp_path / "out")
    assert [error.pointer for error in caught.value.errors] == ["/files/0"]
