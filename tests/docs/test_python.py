"""Every block of docs/python.md runs, one after the other in one folder, and does what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.docs.blocks import ROOT, fenced
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service

pytestmark = [pytest.mark.slow, pytest.mark.long]  # on a service, quantizes several times

PAGE = ROOT / "docs" / "python.md"
Names = dict[str, Any]


def given_a_service(names: Names, service: Service) -> None:
    """A client, the model and the data of the blocks before on its service, and a job that has ended."""
    client = service.client
    np.savez("data.npz", input=np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32))
    model = client.wait_ready(client.push_model(Path("float.onnx")))
    data = client.wait_ready(client.push_dataset(Path("data.npz")))
    earlier_job = client.wait_succeeded(client.submit(model=model.id, calibration=data.id).id)
    names.update(client=client, model=model, data=data, earlier_job=earlier_job)


def given_a_script_for_vitis_ai(names: Names, service: Service) -> None:
    images = torch.randn(32, 3, 8, 8)
    labels = names["module"](images).argmax(1)
    loader = DataLoader(list(zip(images, labels.tolist(), strict=True)), batch_size=8)

    def evaluate(model: Callable[..., Any], data: DataLoader[Any], loss_fn: Callable[..., Any]) -> float:
        return float(sum(loss_fn(model(x), y).item() for x, y in data))

    names.update(
        model=names["module"], example=images[:8], evaluate=evaluate, ft_loader=loader, val_loader=loader,
        loss_fn=nn.CrossEntropyLoss(),
    )  # fmt: skip


def given_nothing(names: Names, service: Service) -> None:
    """The block stands on those before it."""


def has_run(names: Names, service: Service) -> None:
    """What it does is told by the tests of the package."""


def quantizes(names: Names, service: Service) -> None:
    assert names["scores"].shape == (5, 10)
    assert [row.reason_code for row in names["result"].report.layers if row.op == "Gemm"] == ["excluded"]
    assert Path("quantized.onnx").is_file()


def quantizes_the_next_version(names: Names, service: Service) -> None:
    client, job = names["client"], names["job"]
    client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    assert names["version"].version == 2
    assert client.report(job.id).tensor_ranges == client.report(names["earlier_job"].id).tensor_ranges


def calibrates_tests_and_exports(names: Names, service: Service) -> None:
    written = {path.name for path in Path("quantize_result").iterdir()}
    assert written >= {"quant_info.json", "Sequential_calibrated.onnx", "Sequential_int.onnx"}
    onnx.checker.check_model("quantize_result/Sequential_int.onnx")


def given_a_script_for_training(names: Names, service: Service) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    def validate(loader: Any, model: nn.Module, criterion: nn.Module, gpu: int | None) -> None:
        names["validated"] = [float(criterion(model(images), labels)) for images, labels in loader]

    names.update(
        model=names["module"], inputs=torch.randn(4, 3, 8, 8), lr=1e-3, weight_decay=1e-4, train=train,
        train_loader=names["training"], validate=validate, val_loader=names["evaluation"],
        criterion=nn.CrossEntropyLoss(), gpu=None,
    )  # fmt: skip


def trains_and_deploys(names: Names, service: Service) -> None:
    written = {path.name for path in Path("qat_result").iterdir()}
    assert written == {"quant_info.json", "Sequential_deployable.onnx", "Sequential_int.onnx"}
    onnx.checker.check_model("qat_result/Sequential_int.onnx")
    assert np.isfinite(names["validated"]).all()


def quantizes_as_quark_does(names: Names, service: Service) -> None:
    assert [step.method for step in names["quantizer"].report.algorithms] == ["adaround"]
    types = {tensor.data_type for tensor in onnx.load("int8.onnx").graph.initializer}
    assert {onnx.TensorProto.INT8, onnx.TensorProto.UINT8} <= types


# What a block stands on, and what it has to have done, in the page's order.
BLOCKS = [
    (given_nothing, quantizes), (given_nothing, has_run), (given_nothing, has_run),
    (given_a_service, quantizes_the_next_version), (given_nothing, has_run), (given_nothing, has_run),
    (given_a_script_for_vitis_ai, calibrates_tests_and_exports), (given_a_script_for_training, trains_and_deploys),
    (given_nothing, quantizes_as_quark_does),
]  # fmt: skip


def test_every_block_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = fenced(PAGE, "python")
    assert len(blocks) == len(re.findall(r"^```\w*$", PAGE.read_text(), re.MULTILINE)) / 2  # there are no others
    names: Names = {}
    for block, (given, does) in zip(blocks, BLOCKS, strict=True):
        given(names, service)
        exec(compile(block, "python.md", "exec"), names)
        does(names, service)
