"""A disk without room is the installation's fault, wherever it shows: the job waits and goes on by itself."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from service.contracts.errors import EngineError
from service.jobs import transitions
from tests.worker.workbench import QUICK, WRITE_PID, Workbench, finish, run_in_thread, runner_pid
from worker.conclusion import Conclusion
from worker.faults import storage_fault
from worker.guard import StopClock
from worker.lease import Timing
from worker.quantizer.training.samples import _Column
from worker.quantizer.walk.store import Limits, Store

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


@contextmanager
def small_disk(folder: Path, size_bytes: int = 4 * MIB) -> Iterator[Path]:
    """A filesystem of its own on ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no filesystem can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take every byte; removing the file gives the room back."""
    path = folder / "full"
    with path.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        while True:
            stream.write(b"\0" * 65536)
    return path


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """Its scratch folder and its store are small disks of their own."""
    data = tmp_path / "data"
    with small_disk(data / "scratch"), small_disk(data / "store"):
        workbench = Workbench(tmp_path)
        yield workbench
        workbench.close()


def assert_waits(bench: Workbench, job_id: str, attempts: int, code: str = "storage-full") -> None:
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", attempts, attempts)
    assert job.waiting["code"] == code
    assert job.waiting["hint"]
    assert bench.scratch_folders() in ([], ["full"])


def test_full_while_preparing_and_no_number_of_attempts_fails_the_job(bench):
    job_id = bench.submit(model_id=bench.add_model({"net.onnx": b"x" * MIB}))
    supervisor = bench.supervisor("succeed()")
    full = fill(bench.settings.scratch_dir)
    for attempts in range(1, 13):
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, attempts)
    full.unlink()
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"
    assert bench.job(job_id).waiting is None
    assert bench.model(bench.job(job_id).model_id).status == "ready"


def test_full_while_running(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(REPORTING + "attempt(lambda: open('big', 'wb').write(b'x' * 3_000_000))\nsucceed()\n")
    blocker = bench.settings.scratch_dir / "full"
    blocker.write_bytes(b"\0" * 3 * MIB)
    assert supervisor.run(job_id)
    assert_waits(bench, job_id, 1)
    blocker.unlink()
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_library_that_does_not_say_that_the_disk_is_full(bench):
    """It leaves half a file, and whoever reads that complains of something else; temporary files stay in scratch."""
    job_id = bench.submit()
    supervisor = bench.supervisor(
        """
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
    )
    assert supervisor.run(job_id)
    assert_waits(bench, job_id, 1)


def test_a_mapped_file_on_a_full_disk_is_no_crash_of_the_job(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        """
        import mmap
        with open("hole", "wb") as stream: stream.truncate(16 << 20)
        with open("hole", "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
            for place in range(0, 16 << 20, 4096): mapped[place] = 1
        """
    )
    assert supervisor.run(job_id)
    assert_waits(bench, job_id, 1)


def test_full_while_publishing(bench):
    """The store is another disk than the scratch folder: what is copied there is the first to meet the end."""
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset(b"npz"))
    supervisor = bench.supervisor(
        """
        import hashlib
        data = b"y" * 2_000_000
        with open(os.path.join(task["output_dir"], "thumbnails.png"), "wb") as stream: stream.write(data)
        summary = dict(format="npz", arrays={}, samples=1, size_bytes=1, sha256="0" * 64, thumbnails=dict(
            file="thumbnails.png", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data)))
        say(line="dataset", summary=summary)
        sys.exit(0)
        """
    )
    full = fill(bench.settings.storage_dir)
    assert supervisor.run(job_id)
    assert_waits(bench, job_id, 1)
    assert list(bench.store.incoming.iterdir()) == [], "half a copy takes room from everybody"
    full.unlink()
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_store_that_is_not_mounted_is_waited_for(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor("succeed()")
    with small_disk(bench.settings.storage_dir):  # over it: an empty folder, as without its mount
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, 1, "storage-away")
        assert list(bench.settings.storage_dir.iterdir()) == []
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_disk_that_can_only_be_read_any_more_is_waited_for(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor("succeed()")
    remount(bench.settings.scratch_dir, "ro")
    for attempts in range(1, 5):
        assert supervisor.run(job_id)
        assert_waits(bench, job_id, attempts, "storage-away")
    remount(bench.settings.scratch_dir, "rw")
    assert supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"


def test_a_disk_that_turns_read_only_under_a_runner_is_waited_for(bench):
    job_id = bench.submit()
    code = REPORTING + WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\n"
    thread = run_in_thread(bench.supervisor(code + "attempt(lambda: open('more', 'wb'))\nsucceed()\n"), job_id)
    runner_pid(bench)
    remount(bench.settings.scratch_dir, "ro")
    (bench.folder / "go").touch()
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.interruptions, job.waiting["code"]) == ("queued", 1, "storage-away")


def test_the_pause_grows_to_a_minute(bench):
    job_id = bench.submit(model_id=bench.add_model({"net.onnx": b"x" * MIB}))
    conclusion = Conclusion(
        bench.settings,
        bench.store,
        timing=QUICK,
        stop=StopClock(lambda: False),
        backoff_seconds=transitions.backoff_seconds,
    )
    pauses = [conclusion.pause_seconds(bench.job(job_id), "storage-full") for _ in range(3)]
    assert max(pauses) < 3
    job = bench.job(job_id)
    job.interruptions = 100_000
    assert 45 < conclusion.pause_seconds(job, "storage-full") <= 60
    assert conclusion.pause_seconds(job, "worker-shutdown") == 0


def test_a_database_without_room_is_waited_for_with_the_result_in_hand(tmp_path):
    """Neither progress nor the end can be written: the job waits, and ends well once there is room."""
    with small_disk(tmp_path / "data", 8 * MIB) as disk:
        bench = Workbench(tmp_path, scratch_dir=tmp_path / "scratch")
        job_id = bench.submit()
        timing = Timing(lease=2.0, renew=0.3, look=0.1, flush=0.05, flush_max=0.1, again=0.1)
        code = WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\nsucceed()\n"
        thread = run_in_thread(bench.supervisor(code, timing=timing), job_id)
        runner_pid(bench)
        full = fill(disk)
        (tmp_path / "go").touch()
        thread.join(2 * timing.lease)
        assert thread.is_alive()
        full.unlink()
        finish(thread)
        assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("succeeded", 1)
        bench.close()


def test_errors_of_libraries_without_a_number_are_recognized(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        with pytest.raises(OSError, match="requested and") as caught:
            np.zeros(4_000_000, np.uint8).tofile(disk / "array")
        assert caught.value.errno is None
        fault = storage_fault(caught.value, disk)
        assert fault is not None
        assert fault.code == "storage-full"
    assert storage_fault(caught.value, tmp_path) is None, "there is room: it means something else"


def test_tensors_on_disk_tell_why_there_is_no_room_for_them(tmp_path):
    """With a number, so that a quota, which shows in no figure of the disk, is the installation's fault as well."""
    array = np.zeros((2, 1 << 20), np.float32)
    with small_disk(tmp_path / "disk") as disk:
        store = Store(Limits(level=2, disk_bytes=1 << 30), disk)
        column = _Column(array.shape, array.dtype, whole=False, file=(disk / "column").open("wb"))
        for write in (lambda: store.put("key", array, read_next=False), lambda: column.write(0, array)):
            with pytest.raises(OSError, match="No space left") as caught:
                write()
            assert caught.value.errno == errno.ENOSPC
        column.file.raw.close()
        store.close()


def test_a_quota_is_recognized_although_the_disk_has_room(tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        monkeypatch.setattr("worker.faults.has_room", lambda folder: True)
        fault = storage_fault(OSError("4000000 requested and 4096 written"), disk)
        assert fault is not None
        assert fault.code == "storage-full"
        assert [path.name for path in disk.iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "storage-full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "storage-full"),
        (OSError(errno.ESTALE, "Stale file handle"), "storage-away"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "storage-full"),
        (OSError(errno.EFBIG, "File too large"), None),
        (OSError(errno.EIO, "Input/output error"), "storage-away"),
        (OSError(errno.EROFS, "Read-only file system"), "storage-away"),
        (OSError(errno.ETIMEDOUT, "Connection timed out"), "storage-away"),
        (OSError(errno.EACCES, "Permission denied"), None),
        (OSError(errno.EMFILE, "Too many open files"), None),
        (EngineError("a tensor named 'no space left on device'"), None),
        (ValueError("x"), None),
    ],
)
def test_which_errors_are_the_installations(error, code):
    fault = storage_fault(error)
    assert (fault and fault.code) == code


def test_the_fault_is_found_behind_another_error():
    error = EngineError("the model could not be written")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    fault = storage_fault(error)
    assert fault is not None
