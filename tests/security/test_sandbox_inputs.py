"""How inputs reach a runner, and what it leaves: never a way into the store, or to what belongs to another tenant."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.named_preprocessing import named_preprocessing
from service.jobs import transitions
from service.tables import Dataset
from tests.security.conftest import require_controls
from tests.support.front import npz_bytes
from tests.support.media import archive, encoded, noise
from tests.support.tiny import make_tiny
from tests.unit.quantizer.toolbox import make_model
from tests.worker.workbench import QUICK, RUNNER_HEAD, Workbench
from worker.confinement.controls import CONTROLS, LANDLOCK
from worker.materials import Keeping, Materials
from worker.sandbox import Sandbox
from worker.supervisor import Supervisor


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
def test_a_runner_reads_its_input_in_the_store_and_nothing_else_there(bench: Workbench) -> None:
    require_controls(LANDLOCK.name)
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
    bench.settings.cache_dir.mkdir()
    program = bench.folder / "program.py"
    program.write_text(RUNNER_HEAD + code)
    sandbox = Sandbox((sys.executable, "-P", str(program)))
    Supervisor(bench.settings, bench.database, bench.store, sandbox=sandbox, timing=QUICK).run(job_id)
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
                session, tenant_id=tenant, kind="quantize", model_id=model_id, config={"preset": "int8"}
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


def picture_dataset(bench: Workbench) -> str:
    files = {f"{number}.png": encoded(noise(40, 40, seed=number)) for number in range(3)}
    data = archive(bench.folder / "pictures.tar", files).read_bytes()
    dataset_id = bench.add_dataset(data, named_preprocessing("imagenet_torchvision"))
    with bench.database.write() as session:
        session.execute(update(Dataset).where(Dataset.id == dataset_id).values(format="tar"))
    return dataset_id


@pytest.mark.long
@pytest.mark.slow
def test_real_jobs_run_under_every_control(tmp_path: Path) -> None:
    """Validation of model, data and pictures; a quantization with an algorithm, a metric of the user's own, a cache."""
    require_controls(*(control.name for control in CONTROLS if control.required))
    bench = Workbench(tmp_path / "bench", sandbox="require")
    try:
        tiny = make_tiny(tmp_path)
        supervisor = Supervisor(bench.settings, bench.database, bench.store)
        model_id = bench.add_model({"net.onnx": tiny.model.read_bytes()})
        graph = make_model("(float[N,C] y) => (float mean) { mean = ReduceMean<keepdims=0>(y) }")
        mean = bench.add_model({"metric.onnx": graph.SerializeToString()})
        metric = {"kind": "onnx", "name": "mine", "graph": {"model_id": mean}}
        data, pictures = bench.add_dataset(tiny.calibration.read_bytes()), picture_dataset(bench)
        algorithms = [{"method": "adaround", "num_iterations": 10}]
        config = parse_config({"preset": "int8", "algorithms": algorithms, "evaluation": {"metrics": [metric]}})
        for values in (
            {"kind": "inspect_model", "model_id": model_id},
            {"kind": "inspect_dataset", "model_id": None, "dataset_id": data},
            {"kind": "inspect_dataset", "model_id": None, "dataset_id": pictures},
            {
                "kind": "quantize", "model_id": model_id, "calibration_dataset_id": data,
                "evaluation_dataset_id": data, "config": config.model_dump(mode="json"),
            },
        ):  # fmt: skip
            job_id = bench.submit(**values)
            assert supervisor.run(job_id)
            job = bench.job(job_id)
            assert job.state == "succeeded", (values["kind"], job.error)
    finally:
        bench.close()


@pytest.mark.slow
def test_npz_of_the_store_is_read_through_its_name(bench: Workbench) -> None:
    """The real runner on a dataset that lies in the store."""
    data = npz_bytes(x=np.zeros((4, 2), np.float32))
    spec = PreprocessingSpec().model_dump(mode="json")
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset(data, spec))
    Supervisor(bench.settings, bench.database, bench.store).run(job_id)
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
