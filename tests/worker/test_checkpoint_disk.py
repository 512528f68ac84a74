"""A disk that fills up between two layers: what was finished is kept, and nothing is computed that cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.artifacts import repository
from tests.support.tiny import make_tiny
from tests.worker.test_storage_faults import MIB, small_disk
from tests.worker.workbench import Workbench

pytestmark = pytest.mark.slow  # runs the engine

CONFIG = {
    "preset": "int8",
    "evaluation": {"latency_runs": 1, "layer_samples": 1},
    "algorithms": [{"method": "adaround", "num_iterations": 20, "solver": "gradient", "accept": "always"}],
}
# The real runner and engine; its first layer is no sooner done than somebody else takes all that is left of the disk.
FULL_AFTER_A_LAYER = """
import errno
from service import failpoints
from worker import runner
def reach(name):
    if name != "after_layer":
        return
    with open(os.environ["BENCH"] + "/layers", "a") as stream: stream.write("x")
    if os.path.getsize(stream.name) == 1:
        with open({folder!r} + "/full", "wb", buffering=0) as stream:
            for size in (65536, 4096, 1):
                try:
                    while stream.write(bytes(size)): pass
                except OSError as error:
                    if error.errno != errno.ENOSPC: raise
failpoints.reach = reach
sys.exit(runner.main([task_file]))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16 * MIB) as folder:
        yield folder


def submit(bench: Workbench, tmp_path: Path) -> str:
    tiny = make_tiny(tmp_path)
    model_id = bench.add_model({"net.onnx": tiny.model.read_bytes()})
    data = bench.add_dataset(tiny.calibration.read_bytes())
    return bench.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config=CONFIG)


def told(bench: Workbench, job_id: str) -> str:
    return "\n".join(event.data["message"] for event in bench.events(job_id, "log"))


def report_of(bench: Workbench, job_id: str) -> dict[str, Any]:
    with bench.database.read() as session:
        (digest,) = [
            item.sha256 for item in repository.list_of_job(session, "default", job_id) if item.kind == "report"
        ]
    report: dict[str, Any] = json.loads(bench.store.path(digest).read_bytes())
    return report


def test_where_the_result_would_not_fit_either_the_job_waits_at_once(disk: Path, tmp_path: Path) -> None:
    bench = Workbench(tmp_path, scratch_dir=disk)
    job_id = submit(bench, tmp_path)
    supervisor = bench.supervisor(FULL_AFTER_A_LAYER.format(folder=str(disk)))
    assert supervisor.run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", 1, 1), job.error
    assert job.waiting["code"] == "storage-full"
    assert (tmp_path / "layers").read_text() == "x", "it went on with a layer that could not be kept"
    (disk / "full").unlink()
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
    assert (tmp_path / "layers").read_text() == "xx", "a finished layer was done again"
    assert "taken over" in told(bench, job_id)
    assert not [note for note in report_of(bench, job_id)["notes"] if "could not be kept" in note]
    bench.close()


def test_where_only_checkpoints_do_not_fit_the_job_goes_on_and_says_so(disk: Path, tmp_path: Path) -> None:
    bench = Workbench(tmp_path, checkpoint_dir=disk)
    job_id = submit(bench, tmp_path)
    assert bench.supervisor(FULL_AFTER_A_LAYER.format(folder=str(disk))).run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 1), job.error
    assert "checkpoints cannot be kept: No space left on device" in told(bench, job_id)
    (note,) = [note for note in report_of(bench, job_id)["notes"] if "could not be kept" in note]
    assert "No space left on device" in note
    bench.close()
