"""A disk without room is the installation's fault, wherever it shows: the job waits and goes on by itself."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.contracts.errors import EngineError
from service.jobs import transitions
from tests.fault.harness.disk import SmallDisk, small_disk
from tests.support.tiny import make_tiny
from tests.worker.workbench import PUBLISHES, QUICK, WAIT, WRITE_PID, Workbench, finish, wait_for
from worker.conclusion import Conclusion
from worker.faults import storage_fault
from worker.guard import StopClock
from worker.quantizer.layerwise.frontier import Store, StoreLimits
from worker.quantizer.training.samples import _SampleColumn

MIB = 1024**2
# Reports what it meets as the real runner does.
REPORTING = """
from pathlib import Path
from worker.faults import storage_fault
def attempt(action):
    try:
        action()
    except OSError as error:
        say(line="error", problem=storage_fault(error, Path.cwd()).problem().model_dump(mode="json"))
        sys.exit(14)
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(4, tmp_path / "data" / "scratch") as disk:
        yield disk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(4, tmp_path / "data" / "store") as disk:
        yield disk


@pytest.fixture
def bench(scratch: SmallDisk, store: SmallDisk, tmp_path: Path) -> Iterator[Workbench]:
    """Its scratch folder and its store are small disks of their own."""
    workbench = Workbench(tmp_path)
    yield workbench
    workbench.close()


def assert_waits(bench: Workbench, job_id: str, attempts: int = 1, code: str = "storage-full") -> None:
    assert bench.standing(job_id) == ("queued", attempts, attempts)
    waiting = bench.job(job_id).waiting
    assert (waiting["code"], bool(waiting["hint"])) == (code, True)
    assert bench.scratch_folders() in ([], ["full"])


def test_full_while_preparing_and_no_number_of_attempts_fails_the_job(bench, scratch):
    job_id = bench.submit(model_id=bench.add_model({"net.onnx": b"x" * MIB}))
    supervisor = bench.supervisor("succeed()")
    scratch.fill()
    for attempts in range(1, 13):
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, attempts)
    scratch.free()
    assert supervisor.run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.waiting, bench.model(job.model_id).status) == ("succeeded", None, "ready")


# It leaves half a file, and whoever reads that complains of something else; temporary files stay in scratch.
SWALLOWED = """
import tempfile
from worker import runner
def perform(task, run):
    assert tempfile.gettempdir() == os.getcwd()
    with open("hole", "wb", buffering=0) as stream:
        try:
            while True: stream.write(bytes(65536))
        except OSError: pass
    json.loads("")
runner.perform = perform
sys.exit(runner.main([task_file]))
"""
MAPPED = """
import mmap
with open("hole", "wb") as stream: stream.truncate(16 << 20)
with open("hole", "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
    for place in range(0, 16 << 20, 4096): mapped[place] = 1
"""


@pytest.mark.parametrize("code", [SWALLOWED, MAPPED], ids=["swallowed", "mapped"])
def test_a_full_disk_that_nobody_tells_of_is_no_crash_of_the_job(bench, code):
    job_id = bench.submit()
    assert bench.supervisor(code).run(job_id)
    assert_waits(bench, job_id)


def test_full_while_publishing(bench, store):
    """The store is another disk than the scratch folder: what is copied there is the first to meet the end."""
    job_id = bench.inspect_dataset()
    supervisor = bench.supervisor(PUBLISHES)
    store.fill()
    assert supervisor.run(job_id)
    assert_waits(bench, job_id)
    assert list(bench.store.incoming.iterdir()) == [], "half a copy takes room from everybody"
    store.free()
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_store_that_is_not_mounted_is_waited_for(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor("succeed()")
    with small_disk(4, bench.settings.storage_dir):  # over it: an empty folder, as without its mount
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, code="storage-away")
        assert list(bench.settings.storage_dir.iterdir()) == []
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_disk_that_can_only_be_read_any_more_is_waited_for(bench, scratch):
    code = REPORTING + WRITE_PID + WAIT + "attempt(lambda: open('more', 'wb'))\nsucceed()\n"
    job_id, thread, _ = bench.begin(code)
    scratch.remount("ro")
    bench.go()
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.interruptions, job.waiting["code"]) == ("queued", 1, "storage-away")
    scratch.remount("rw")
    job_id, supervisor = bench.submit(), bench.supervisor("succeed()")
    scratch.remount("ro")
    for attempts in range(1, 5):
        assert supervisor.run(job_id)
        job = bench.job(job_id)
        assert (job.state, job.interruptions, job.waiting["code"]) == ("queued", attempts, "storage-away")
    scratch.remount("rw")
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_the_pause_grows_to_a_minute(bench):
    job = bench.job(bench.submit())
    timing = replace(QUICK, backoff=transitions.backoff_seconds)
    conclusion = Conclusion(bench.settings, bench.store, timing=timing, stop=StopClock(lambda: False))
    assert max(conclusion.pause_seconds(job, "storage-full") for _ in range(3)) < 3
    job.interruptions = 100_000
    for code in ("storage-full", "storage-away", "runner-not-started"):
        assert 45 < conclusion.pause_seconds(job, code) <= 60
    assert 45 < conclusion.pause_seconds(job, "worker-fault") <= 72
    assert conclusion.pause_seconds(job, "worker-shutdown") == 0


def test_a_database_without_room_is_waited_for_with_the_result_in_hand(tmp_path, caplog):
    """Neither progress nor the end can be written: the job waits, and ends well once there is room."""
    with small_disk(8, tmp_path / "data") as disk:
        bench = Workbench(tmp_path, scratch_dir=tmp_path / "scratch")
        job_id, thread, _ = bench.begin(timing=replace(QUICK, lease=2.0, renew=0.3, again=0.1))
        disk.fill()
        bench.go()
        wait_for(lambda: caplog.text.count("job.not_concluded") > 3 and "lease.database_away" in caplog.text)
        assert thread.is_alive()
        disk.free()
        finish(thread)
        assert bench.standing(job_id) == ("succeeded", 1, 0)
        bench.close()


def test_errors_of_libraries_without_a_number_are_recognized(tmp_path, monkeypatch):
    with small_disk(4, tmp_path / "disk") as disk:
        disk.fill()
        with pytest.raises(OSError, match="requested and") as caught:
            np.zeros(4_000_000, np.uint8).tofile(disk.folder / "array")
        assert caught.value.errno is None
        fault = storage_fault(caught.value, disk.folder)
        assert fault is not None and fault.code == "storage-full"
        (disk.folder / "array").unlink()
        monkeypatch.setattr("worker.faults.has_room", lambda folder: True)  # a quota shows in no figure of the disk
        fault = storage_fault(caught.value, disk.folder)
        assert fault is not None and fault.code == "storage-full"
        assert [path.name for path in disk.folder.iterdir()] == ["full"]
    assert storage_fault(caught.value, tmp_path) is None, "there is room: it means something else"


def test_tensors_on_disk_tell_why_there_is_no_room_for_them(tmp_path):
    """With a number, so that a quota, which shows in no figure of the disk, is the installation's fault as well."""
    array = np.zeros((2, 1 << 20), np.float32)
    with small_disk(4, tmp_path / "disk") as disk:
        store = Store(StoreLimits(level=2, disk_bytes=1 << 30), disk.folder)
        column = _SampleColumn(array.shape, array.dtype, whole=False, file=(disk.folder / "column").open("wb"))
        for write in (lambda: store.put("key", array, read_next=False), lambda: column.write(0, array)):
            with pytest.raises(OSError, match="No space left on device") as caught:
                write()
            assert caught.value.errno == errno.ENOSPC
        column.file.raw.close()
        store.close()


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, ""), "storage-full"),
        (OSError(errno.EDQUOT, ""), "storage-full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "storage-full"),
        (caused(EngineError("could not be written"), OSError(errno.ENOSPC, "")), "storage-full"),
        (OSError(errno.ESTALE, ""), "storage-away"),
        (OSError(errno.EIO, ""), "storage-away"),
        (OSError(errno.EROFS, ""), "storage-away"),
        (OSError(errno.ETIMEDOUT, ""), "storage-away"),
        (OSError(errno.EFBIG, ""), None),
        (OSError(errno.EACCES, ""), None),
        (OSError(errno.EMFILE, ""), None),
        (EngineError("a tensor named 'no space left on device'"), None),
        (ValueError("x"), None),
    ],
)
def test_which_errors_are_the_installations(error, code):
    fault = storage_fault(error)
    assert (fault and fault.code) == code


# The real runner and engine; its first layer is no sooner done than somebody else takes all that is left of the disk.
FULL_AFTER_A_LAYER = """
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
                except OSError: pass
failpoints.reach = reach
sys.exit(runner.main([task_file]))
"""
ADAROUND = {"method": "adaround", "num_iterations": 20, "solver": "gradient", "accept": "always"}


@pytest.mark.long
@pytest.mark.parametrize("place", ["scratch_dir", "checkpoint_dir"])
def test_a_disk_that_fills_up_between_two_layers(tmp_path, place):
    """Where the result would not fit either the job waits at once; where only checkpoints do not, it goes on."""
    tiny = make_tiny(tmp_path)
    with small_disk(16, tmp_path / "disk") as disk:
        bench = Workbench(tmp_path, **{place: disk.folder})
        job_id = bench.quantize(
            tiny.model.read_bytes(), tiny.calibration.read_bytes(), algorithms=[ADAROUND],
            evaluation={"latency_runs": 1, "layer_samples": 1},
        )  # fmt: skip
        supervisor = bench.supervisor(FULL_AFTER_A_LAYER.format(folder=str(disk.folder)))
        assert supervisor.run(job_id)
        if place == "scratch_dir":
            assert bench.standing(job_id) == ("queued", 1, 1), bench.job(job_id).error
            assert bench.job(job_id).waiting["code"] == "storage-full"
            assert (tmp_path / "layers").read_text() == "x", "it went on with a layer that could not be kept"
            disk.free()
            assert supervisor.run(job_id)
            assert (tmp_path / "layers").read_text() == "xx", "a finished layer was done again"
        assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
        report = json.loads(bench.store.path(bench.artifacts(job_id)["report"].sha256).read_bytes())
        told, notes = "\n".join(bench.logged(job_id)), [note for note in report["notes"] if "could not be kept" in note]
        if place == "scratch_dir":
            assert "reusing results" in told
            assert notes == []
        else:
            assert bench.job(job_id).attempt == 1
            assert "checkpoints cannot be kept: No space left on device" in told
            assert "No space left on device" in notes[0]
        bench.close()
