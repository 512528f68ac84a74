"""How inputs reach a runner, and what it leaves: never a way into the store, or to what belongs to another tenant."""

from __future__ import annotations

import sys

import pytest

from service.jobs import transitions
from tests.security.conftest import require_controls
from tests.worker.workbench import QUICK, RUNNER_HEAD, WAITS, ReleasingSupervisor, Workbench
from worker.confinement.controls import LANDLOCK
from worker.materials import Keeping, Materials
from worker.sandbox import Sandbox


@pytest.mark.parametrize("borrow", [True, False])
def test_no_input_is_a_hard_link_into_the_store(bench: Workbench, borrow: bool) -> None:
    model_id, data = bench.add_model({"net.onnx": b"a model", "w.bin": b"its weights"}), bench.add_dataset(b"data")
    job_id = bench.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config={"preset": "int8"})
    scratch = bench.folder / "scratch"
    scratch.mkdir()
    materials = Materials(scratch, bench.store, threads=1, borrow=borrow)
    with bench.database.read() as session:
        task = materials.read(session, bench.job(job_id))
    materials.lay_out(task)
    stored = [path for path in bench.store.blobs.rglob("*") if path.is_file()]
    assert len(stored) == 3
    assert {path.stat().st_nlink for path in stored} == {1}
    calibration = scratch / "data" / "calibration.npz"
    assert calibration.read_bytes() == b"data"
    assert calibration.is_symlink() is borrow
    assert materials.places.readable == ((bench.store.path(bench.put(b"data")),) if borrow else ())


@pytest.mark.slow
@pytest.mark.parametrize("spare", [False, True])
def test_a_runner_reads_its_input_in_the_store_and_nothing_else_there(
    bench: Workbench, spare: bool, caplog: pytest.LogCaptureFixture
) -> None:
    require_controls(LANDLOCK.name)
    caplog.set_level("INFO")
    bench.settings.cache_dir.mkdir()
    secret = bench.store.path(bench.put(b"of another tenant"))
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset(b"mine"))
    code = f"""
def attempt(what, function):
    try:
        log(what + ": " + str(function()))
    except OSError as error:
        log(what + ": refused")
path = os.path.realpath(task["path"])
attempt("read", lambda: open(path, "rb").read())
attempt("write", lambda: open(path, "r+b"))
attempt("list", lambda: os.listdir(os.path.dirname(path)))
attempt("other", lambda: open({str(secret)!r}, "rb").read())
attempt("cache", lambda: os.listdir({str(bench.settings.cache_dir)!r}))
attempt("checkpoints", lambda: os.listdir({str(bench.settings.checkpoint_dir)!r}))
attempt("database", lambda: open({bench.settings.database_url.removeprefix("sqlite:///")!r}, "rb").read())
say(line="dataset", summary={{}})
"""
    program = bench.folder / "program.py"
    program.write_text(RUNNER_HEAD + code)
    sandbox = Sandbox((sys.executable, "-P", str(WAITS), str(program)))
    spares = bench.keep_spare(sandbox) if spare else None
    supervisor = ReleasingSupervisor(bench.settings, bench.database, sandbox=sandbox, spares=spares, timing=QUICK)
    supervisor.run(job_id)
    assert ("spare.taken" in caplog.text) is spare
    told = dict(event.data["message"].split(": ", 1) for event in bench.events(job_id, "log"))
    assert told == {"read": "b'mine'"} | dict.fromkeys(
        ("write", "list", "other", "cache", "checkpoints", "database"), "refused"
    )


def test_each_tenant_writes_into_a_cache_of_its_own(bench: Workbench) -> None:
    folders = []
    for tenant in ("one", "other"):
        model_id = bench.add_model({"net.onnx": tenant.encode()}, tenant=tenant)
        scratch = bench.folder / tenant
        scratch.mkdir()
        with bench.database.write() as session:
            job = transitions.submit(
                session,
                transitions.NewJob(tenant_id=tenant, kind="quantize", model_id=model_id, config={"preset": "int8"}),
            )
        materials = Materials(
            scratch, bench.store, threads=1, keeping=Keeping(cache_dir=bench.settings.cache_dir, cache_bytes=1000)
        )
        with bench.database.read() as session:
            task = materials.read(session, bench.job(job.id))
        materials.lay_out(task)
        folders += materials.places.writable
    assert len(set(folders)) == 2
    assert {folder.parent for folder in folders} == {bench.settings.cache_dir}
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in folders)
