"""``quantmill quantize --server``: the same command, bytes and errors; ``--priority``, ``--device`` and ``queues``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from service.contracts.report import Report
from service.queues.schemas import QueuedOut, QueueOut, SlotsOut
from tests.cli.conftest import KEY, Ask, Quantmill
from tests.support.tiny import Tiny, make_model
from tests.worker.running import Service
from worker.commands.views import print_queues

CUDA = {"preset": "int8", "algorithms": [{"method": "adaround", "optim_device": "cuda:0"}]}
FAST = {"FastFinetune": {"OptimAlgorithm": "adaround", "OptimDevice": "cuda:0"}}
QUARK = {"format": "quark", "config": {"global_quant_config": {"include_fast_ft": True, "extra_options": FAST}}}


@pytest.fixture
def quantize(tiny: Tiny) -> list[object]:
    return ["quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx"]


def comparable(report: Report) -> dict:
    """The report without what was timed."""
    document = report.model_dump(mode="json", exclude={"stages", "summary", "gate", "latency", "notes"})
    for row in document["layers"]:
        row.pop("latency_percent")
    for advice in document["advice"]:
        if advice["figure"] is not None:
            advice["figure"].pop("seconds")
    for side in ("float_", "quantized"):
        document[side].pop("latency_ms")
    return document


@pytest.mark.slow
def test_both_ways_give_the_same_bytes_and_the_same_report(quantmill, tiny, service: Service, tmp_path):
    make_model(tmp_path / "net.onnx", external="weights.bin")
    common = ["quantize", "net.onnx", "--calibration", tiny.calibration, "--evaluation", tiny.evaluation]
    quantmill(*common, "--threads", "1", "--output", "local.onnx", "--report", "local.json", code=0)
    remote = quantmill(
        *common, "--output", "remote.onnx", "--report", "remote.json", "--priority", "42", "--device", "cpu",
        "--server", service.url, "--key", KEY, code=0,
    )  # fmt: skip
    assert (tmp_path / "local.onnx").read_bytes() == (tmp_path / "remote.onnx").read_bytes()
    reports = [Report.model_validate_json((tmp_path / name).read_text()) for name in ("local.json", "remote.json")]
    assert comparable(reports[0]) == comparable(reports[1])
    for word in ("net.onnx", "job job_", "evaluation"):
        assert word in remote.stderr
    assert "Succeeded, no gate: " in remote.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "local.json", "local.onnx", "net.onnx", "remote.json", "remote.onnx", "weights.bin",
    ]  # fmt: skip
    (listed,) = service.client.jobs(limit=1)
    assert (listed.priority, listed.device, listed.queue, listed.size_class) == (42, "cpu", "cpu", "short")
    job = service.client.job(listed.id)
    assert job.config is not None
    assert job.config["preset"] == listed.preset


@pytest.mark.slow
def test_a_refusal_of_the_service_is_told_like_a_local_one(ask: Ask, tiny, tmp_path):
    np.savez(tmp_path / "c.npz", x=np.ones((4, 3, 9, 9), np.float32))
    told = ask("quantize", tiny.model, "--calibration", "c.npz", "--output", "q.onnx", code=1)
    for word in ("error[dataset-mismatch]", "calibration dataset", "hint: ", "request: req_"):
        assert word in told
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:300])
    told = ask("quantize", "broken.onnx", "--calibration", tiny.calibration, "--output", "q.onnx", code=1)
    assert "error[" in told
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("document", [CUDA, QUARK], ids=["ours", "quark"])
def test_a_gpu_that_is_not_there_is_told_at_once(
    quantmill: Quantmill, quantize: list[object], tmp_path: Path, document: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "config.json").write_text(json.dumps(document))
    done = quantmill(*quantize, "--config", "config.json", code=1)
    assert "[device-not-there]" in done.stderr
    assert "ptim" in done.stderr.replace("_", "")  # the place in the file
    assert "collect" not in done.stderr, "statistics were taken"
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.slow
def test_the_queues_on_a_terminal_and_for_programs(ask: Ask) -> None:
    assert all(word in ask("queues") for word in ("cpu", "gpu", "inspect", "busy"))
    found = {queue["name"]: queue for queue in json.loads(ask("queues", "--json"))["items"]}
    assert found["cpu"]["slots"]["total"] == found["cpu"]["workers"] == 1
    assert found["gpu"]["workers"] == 0
    assert json.loads(ask("quarantine", "list", "--json"))["items"] == []


def test_the_table_of_queues_tells_of_deaf_workers() -> None:
    queue = QueueOut(
        name="cpu", queued=QueuedOut(due=3, delayed=0), running=0, oldest_due_age_seconds=61.0,
        workers=2, deaf_workers=1, slots=SlotsOut(total=2, busy=0, free=2),
    )  # fmt: skip
    console = Console(record=True, width=120)
    print_queues([queue, queue.model_copy(update={"deaf_workers": 0})], console)
    told = console.export_text()
    assert told.count("2 (1 unreachable)") == told.count("unreachable") == 1
