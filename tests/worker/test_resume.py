"""A worker that is killed with all that belongs to it: the job goes on where it was, on another host."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from service.failpoints import VARIABLE
from tests.unit.quantizer.precision.benches import chain_of_convolutions, samples
from tests.worker.hosts import Installation
from tests.worker.running import processes_of
from tests.worker.workbench import wait_for

LAYERS = 6  # five convolutions and a classifier
DONE = 3
CONFIG = {
    "preset": "int8",
    "algorithms": [{"method": "adaround", "solver": "gradient", "num_iterations": 200}],
    "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0},
}


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    data = io.BytesIO()
    np.savez(data, x=samples(32)["x"])
    made = Installation(tmp_path, chain_of_convolutions(LAYERS - 1).SerializeToString(), data.getvalue(), CONFIG)
    yield made
    made.bench.close()


def test_another_host_goes_on_after_the_layers_that_a_killed_worker_has_finished(installation: Installation) -> None:
    gate = installation.folder / "gate"
    gate.touch()
    armed = {VARIABLE: f"after_layer=wait:{gate}@{DONE}"}
    with installation.process("host-0", "reconcile"):
        killed = installation.submit()
        with installation.process("host-1", "worker", **armed) as worker:
            wait_for(lambda: len(installation.kept(killed)) == DONE)
            assert any("worker.runner" in words for words in processes_of(installation.folder / "host-1").values())
            installation.kill("host-1", worker)
        with installation.process("host-2", "worker"):
            job = installation.ended(killed)
            assert job.attempt == 2
            assert installation.layers(killed) == (LAYERS, DONE), "none is computed twice"
            wait_for(lambda: not list(installation.checkpoints.iterdir()), message="the job left its checkpoints")
        with installation.process("host-3", "worker"):
            calm = installation.submit()
            assert installation.ended(calm).attempt == 1
    assert installation.layers(calm) == (LAYERS, 0), "another host has another cache"
    assert installation.artifacts(killed)["model"] == installation.artifacts(calm)["model"]


def test_a_job_whose_layers_another_one_has_finished_on_the_same_host_computes_none(installation: Installation) -> None:
    with installation.process("host-1", "worker"):
        first = installation.submit()
        installation.ended(first)
        second = installation.submit()
        installation.ended(second)
    assert (installation.layers(first), installation.layers(second)) == ((LAYERS, 0), (LAYERS, LAYERS))
    assert installation.artifacts(first)["model"] == installation.artifacts(second)["model"]


def test_without_the_shared_storage_a_job_runs_as_if_nothing_were_kept(installation: Installation) -> None:
    with installation.process("host-1", "worker", QUANTMILL_CHECKPOINT_DIR=str(installation.folder / "not-mounted")):
        job_id = installation.submit()
        assert installation.ended(job_id).attempt == 1
    assert "checkpoints.unavailable" in (installation.folder / "host-1.log").read_text()
    assert not (installation.folder / "not-mounted").exists()
