"""What an attempt is given: the bytes that were uploaded, or none at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetFormatError, EngineError, Pt2NotAllowedError
from service.contracts.runner import TASK_ADAPTER, InspectDatasetTask, InspectModelTask, QuantizeTask
from service.hand_overs import repository as hand_overs
from service.hand_overs.asking import Asked
from service.ids import new_id
from service.tables import Job, Model, ModelFile
from tests.support.front import npz_bytes
from tests.worker.workbench import Workbench
from worker import runner
from worker.materials import Materials


def prepare(materials: Materials, session: Session, job: Job) -> Path:
    return materials.lay_out(materials.read(session, job))


def damage(bench: Workbench, sha256: str) -> None:
    path = bench.store.path(sha256)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["net.onnx", "weights.bin"])
def test_a_damaged_file_of_a_model_fails_the_job_and_is_named(bench: Workbench, name: str) -> None:
    files = {"net.onnx": b"a model", "weights.bin": b"its weights"}
    job_id = bench.submit(model_id=bench.add_model(files))
    sha256 = bench.put(files[name])
    damage(bench, sha256)
    bench.supervisor("succeed()").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.error["code"], job.error["where"]["file"]) == ("failed", "stored-file-corrupt", sha256)
    assert bench.model(job.model_id).status == "rejected"
    assert bench.scratch_folders() == []


def test_a_damaged_dataset_fails_the_job_and_is_named(bench: Workbench) -> None:
    dataset_id = bench.add_dataset(b"some data")
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=dataset_id)
    sha256 = bench.put(b"some data")
    damage(bench, sha256)
    bench.supervisor("succeed()").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.error["code"], job.error["where"]["file"]) == ("failed", "stored-file-corrupt", sha256)


def test_the_declared_format_goes_with_the_data(bench: Workbench) -> None:
    job_id = bench.submit(kind="inspect_dataset", model_id=None, dataset_id=bench.add_dataset(npz_bytes()))
    scratch = bench.folder / "scratch"
    scratch.mkdir()
    with bench.database.read() as session:
        task_file = prepare(Materials(scratch, bench.store, threads=1), session, bench.job(job_id))
    assert json.loads(task_file.read_text())["format"] == "npz"


@pytest.mark.parametrize("of_losses", [False, True])
def test_uploaded_graphs_are_laid_out(bench: Workbench, of_losses: bool) -> None:
    files = {"metric.onnx": b"a graph", "data.bin": b"its data"}
    graph = bench.add_model(files)
    metrics = [{"kind": "onnx", "name": f"m{k}", "graph": {"model_id": graph}} for k in range(2)]
    losses = [{"kind": "onnx", "graph": {"model_id": graph}} for _ in range(2)]
    given = {"algorithms": [{"method": "qat", "losses": losses}]} if of_losses else {"evaluation": {"metrics": metrics}}
    config = parse_config(given).model_dump(mode="json")
    job_id = bench.submit(
        kind="quantize", model_id=bench.add_model(), calibration_dataset_id=bench.add_dataset(), config=config
    )
    scratch = bench.folder / "scratch"
    scratch.mkdir()
    with bench.database.read() as session:
        task_file = prepare(Materials(scratch, bench.store, threads=1), session, bench.job(job_id))
    task = TASK_ADAPTER.validate_json(task_file.read_bytes())
    assert isinstance(task, QuantizeTask)
    (path,) = (Path(found) for found in task.metric_graphs.values())
    assert list(task.metric_graphs) == [graph]
    assert path.parent.parent.parent == scratch
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == files


@pytest.mark.parametrize(
    ("artifact", "state", "wanted"),
    [("weights", "waiting", True), ("model", "waiting", False), ("weights", "skipped", False)],
)
def test_weights_are_written_where_they_are_waited_for(
    bench: Workbench, artifact: str, state: str, wanted: bool
) -> None:
    config = parse_config({}).model_dump(mode="json")
    job_id = bench.submit(
        kind="quantize", model_id=bench.add_model(), calibration_dataset_id=bench.add_dataset(), config=config
    )
    asked = Asked(new_id("hov"), "put", artifact, "pass", "bucket.example", "sealed", "pepper")
    with bench.database.write() as session:
        hand_overs.add(session, bench.job(job_id), [asked])
        if state != "waiting":
            (row,) = hand_overs.waiting_of_job(session, job_id)
            hand_overs.drop(session, row, state, "verdict", "It was.")
    with bench.database.read() as session:
        task = Materials(bench.folder, bench.store, threads=1).read(session, bench.job(job_id))
    assert isinstance(task, QuantizeTask)
    assert task.weights is wanted


def test_a_graph_of_another_tenant_is_not_laid_out(bench: Workbench) -> None:
    graph = bench.add_model({"metric.onnx": b"a graph"}, tenant="other")
    metrics = [{"kind": "onnx", "graph": {"model_id": graph}}]
    config = parse_config({"evaluation": {"metrics": metrics}}).model_dump(mode="json")
    job_id = bench.submit(
        kind="quantize", model_id=bench.add_model(), calibration_dataset_id=bench.add_dataset(), config=config
    )
    scratch = bench.folder / "scratch"
    scratch.mkdir()
    with bench.database.read() as session, pytest.raises(EngineError, match=graph):
        prepare(Materials(scratch, bench.store, threads=1), session, bench.job(job_id))


@pytest.mark.parametrize("declared", ["npz", "safetensors", None])
def test_a_dataset_of_another_format_than_declared_is_refused(tmp_path, declared: str | None) -> None:
    path = tmp_path / f"dataset.{declared}"
    path.write_bytes(npz_bytes(x=np.zeros((4, 2), np.float32)))
    task = InspectDatasetTask(path=str(path), format=declared, preprocessing=PreprocessingSpec())
    run = runner.LineRun(lambda line: None, lambda: None)
    if declared == "safetensors":
        with pytest.raises(DatasetFormatError, match="npz, not safetensors as declared") as caught:
            runner.perform(task, run)
        assert [place.pointer for place in caught.value.errors] == ["/format"]
        assert "format: npz" in caught.value.hint
    else:
        assert runner.perform(task, run).summary.format == "npz"


def test_an_exported_program_is_handed_over_only_where_it_is_allowed(bench: Workbench, tmp_path: Path) -> None:
    model_id = bench.add_model({"net.onnx": b"x"})
    with bench.database.write() as session:
        session.execute(update(Model).where(Model.id == model_id).values(format="pt2"))
        session.execute(update(ModelFile).where(ModelFile.model_id == model_id).values(path="net.pt2", is_main=False))
    job_id = bench.submit(model_id=model_id)
    for name, allowed in (("refused", False), ("allowed", True)):
        (tmp_path / name).mkdir()
        materials = Materials(tmp_path / name, bench.store, threads=1, allow_pt2=allowed)
        with bench.database.read() as session:
            if not allowed:
                with pytest.raises(Pt2NotAllowedError):
                    prepare(materials, session, bench.job(job_id))
                continue
            task = InspectModelTask.model_validate_json(prepare(materials, session, bench.job(job_id)).read_bytes())
        assert (task.format, Path(task.model_path).read_bytes()) == ("pt2", b"x")
