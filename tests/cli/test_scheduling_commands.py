"""``--priority``, ``--device``, ``quantmill queues``; a GPU that is not there is told before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from service.queues.schemas import QueuedOut, QueueOut, SlotsOut
from tests.cli.conftest import KEY, Quantmill
from tests.support.tiny import Tiny
from tests.worker.running import Service
from worker.commands.queues import print_queues

CUDA = {"preset": "int8", "algorithms": [{"method": "adaround", "optim_device": "cuda:0"}]}
QUARK = {
    "format": "quark",
    "config": {
        "global_quant_config": {
            "include_fast_ft": True,
            "extra_options": {"FastFinetune": {"OptimAlgorithm": "adaround", "OptimDevice": "cuda:0"}},
        }
    },
}


def quantize(tiny: Tiny, *options: str) -> list[str]:
    return ["quantize", str(tiny.model), "--calibration", str(tiny.calibration), "--output", "q.onnx", *options]


def test_a_job_carries_priority_and_device(quantmill: Quantmill, service: Service, tiny: Tiny) -> None:
    at = ("--server", service.url, "--key", KEY)
    done = quantmill(*quantize(tiny, *at, "--priority", "42", "--device", "cpu"))
    assert done.returncode == 0, done.stderr
    (listed,) = service.client.jobs(limit=1)
    assert (listed.priority, listed.device, listed.queue, listed.size_class) == (42, "cpu", "cpu", "short")
    job = service.client.job(listed.id)
    assert job.config is not None
    assert job.config["preset"] == listed.preset
    done = quantmill("jobs", "show", listed.id, *at)
    assert "priority 42" in done.stdout


def test_a_gpu_is_refused_by_a_service_without_one(
    quantmill: Quantmill, service: Service, tiny: Tiny, tmp_path: Path
) -> None:
    done = quantmill(*quantize(tiny, "--server", service.url, "--key", KEY, "--device", "gpu"))
    assert done.returncode == 1
    assert "[no-gpu-worker]" in done.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("option", [("--priority", "1"), ("--device", "cpu")])
def test_options_of_a_service_need_one(quantmill: Quantmill, tiny: Tiny, option: tuple[str, str]) -> None:
    done = quantmill(*quantize(tiny, *option))
    assert done.returncode == 2
    assert "--server" in done.stderr


@pytest.mark.parametrize("document", [CUDA, QUARK], ids=["ours", "quark"])
def test_a_gpu_that_is_not_there_is_told_at_once(
    quantmill: Quantmill, tiny: Tiny, tmp_path: Path, document: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "config.json").write_text(json.dumps(document))
    done = quantmill(*quantize(tiny, "--config", "config.json"))
    assert done.returncode == 1
    assert "[device-not-there]" in done.stderr
    assert "ptim" in done.stderr.replace("_", "")  # the place in the file
    assert "collect" not in done.stderr, "statistics were taken"
    assert not (tmp_path / "q.onnx").exists()


def test_the_queues_on_a_terminal_and_for_programs(quantmill: Quantmill, service: Service) -> None:
    at = ("--server", service.url, "--key", KEY)
    done = quantmill("queues", *at)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("cpu", "gpu", "inspect", "busy"))
    found = {queue["name"]: queue for queue in json.loads(quantmill("queues", *at, "--json").stdout)["items"]}
    assert found["cpu"]["slots"]["total"] == found["cpu"]["workers"] == 1
    assert found["gpu"]["workers"] == 0


def test_the_table_of_queues_tells_of_deaf_workers() -> None:
    queue = QueueOut(
        name="cpu", queued=QueuedOut(due=3, delayed=0), running=0, oldest_due_age_seconds=61.0,
        workers=2, deaf_workers=1, slots=SlotsOut(total=2, busy=0, free=2),
    )  # fmt: skip
    console = Console(record=True, width=120)
    print_queues([queue, queue.model_copy(update={"deaf_workers": 0})], console)
    told = console.export_text()
    assert told.count("2 (1 deaf)") == told.count("deaf") == 1
