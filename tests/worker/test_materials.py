"""What an attempt is given: the bytes that were uploaded, or none at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetFormatError, EngineError, Pt2NotAllowedError
from service.contracts.runner import TASK_ADAPTER, InspectDatasetTask, InspectModelTask, QuantizeTask
from service.hand_overs import repository as hand_overs
from service.hand_overs.asking import NewHandOver
from service.ids import new_id
from service.tables import Model, ModelFile
from tests.support.front import npz_bytes
from tests.worker.workbench import Workbench
from worker import runner
from worker.materials import Materials


@pytest.fixture
def lay_out(bench: Workbench) -> Callable[..., Path]:
    """The task file of a job's attempt, with what it names beside it."""

    def laid(job_id: str, **options: Any) -> Path:
        scratch = bench.folder / f"scratch-{job_id}"
        scratch.mkdir(exist_ok=True)
        materials = Materials(scratch, bench.store, threads=1, **options)
        with bench.database.read() as session:
            return materials.lay_out(materials.read(session, bench.job(job_id)))

    return laid


def quantize(bench: Workbench, **config: Any) -> str:
    """A job of the whole config, as the service writes it."""
    return bench.submit(
        kind="quantize", model_id=bench.add_model(), calibration_dataset_id=bench.add_dataset(),
        config=parse_config(config).model_dump(mode="json"),
    )  # fmt: skip


@pytest.mark.parametrize("data", [b"a model", b"its weights", b"some data"])
def test_a_damaged_or_missing_file_fails_the_job_and_is_named(bench: Workbench, data: bytes) -> None:
    is_dataset = data == b"some data"
    files = {"net.onnx": b"a model", "weights.bin": b"its weights"}
    job_id = bench.inspect_dataset(data) if is_dataset else bench.submit(model_id=bench.add_model(files))
    path = bench.store.path(bench.put(data))
    path.chmod(0o600)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    bench.supervisor("succeed()").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.error["code"], job.error["where"]["file"]) == ("failed", "stored-file-corrupt", path.name)
    assert is_dataset or bench.model(job.model_id).status == "rejected"
    assert bench.scratch_folders() == []
    again = bench.submit(model_id=bench.add_model({"net.onnx": b"gone"}))
    gone = bench.store.path(bench.put(b"gone"))
    gone.unlink()
    bench.supervisor("succeed()").run(again)
    assert bench.failure(again) == ("failed", "engine-error")
    assert gone.name in bench.job(again).error["detail"]


def test_the_declared_format_goes_with_the_data(bench: Workbench, lay_out) -> None:
    assert json.loads(lay_out(bench.inspect_dataset(npz_bytes())).read_text())["format"] == "npz"


@pytest.mark.parametrize("of_losses", [False, True])
def test_uploaded_graphs_are_laid_out_and_none_of_another_tenant(bench: Workbench, lay_out, of_losses: bool) -> None:
    def config(graph: str) -> dict[str, Any]:
        metrics = [{"kind": "onnx", "name": f"m{k}", "graph": {"model_id": graph}} for k in range(2)]
        losses = [{"kind": "onnx", "graph": {"model_id": graph}} for _ in range(2)]
        qat = {"algorithms": [{"method": "qat", "losses": losses}]}
        return qat if of_losses else {"evaluation": {"metrics": metrics}}

    files = {"metric.onnx": b"a graph", "data.bin": b"its data"}
    graph, foreign = bench.add_model(files), bench.add_model(files, tenant="other")
    task_file = lay_out(quantize(bench, **config(graph)))
    task = TASK_ADAPTER.validate_json(task_file.read_bytes())
    assert isinstance(task, QuantizeTask)
    assert list(task.metric_graphs) == [graph]
    (path,) = (Path(found) for found in task.metric_graphs.values())
    assert path.parent.parent.parent == task_file.parent
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == files
    with pytest.raises(EngineError, match=foreign):
        lay_out(quantize(bench, **config(foreign)))


@pytest.mark.parametrize(
    ("artifact", "state", "wanted"),
    [("weights", "waiting", True), ("model", "waiting", False), ("weights", "skipped", False)],
)
def test_weights_are_written_where_they_are_waited_for(bench, lay_out, artifact, state, wanted):
    job_id = quantize(bench)
    asked = NewHandOver(new_id("hov"), "put", artifact, "pass", "bucket.example", "sealed", "pepper")
    with bench.database.write() as session:
        hand_overs.add(session, bench.job(job_id), [asked])
        if state != "waiting":
            (row,) = hand_overs.waiting_of_job(session, job_id)
            hand_overs.drop(session, row, state, "verdict", "It was.")
    assert TASK_ADAPTER.validate_json(lay_out(job_id).read_bytes()).weights is wanted


@pytest.mark.parametrize("declared", ["npz", "safetensors", None])
def test_a_dataset_of_another_format_than_declared_is_refused(tmp_path: Path, declared: str | None) -> None:
    path = tmp_path / f"dataset.{declared}"
    path.write_bytes(npz_bytes(x=np.zeros((4, 2), np.float32)))
    task = InspectDatasetTask(path=str(path), format=declared, preprocessing=PreprocessingSpec())
    run = runner.LineRun(lambda line: None, lambda: None)
    if declared == "safetensors":
        with pytest.raises(DatasetFormatError, match="npz, but safetensors was declared") as caught:
            runner.perform(task, run)
        assert [place.pointer for place in caught.value.errors] == ["/format"]
        assert "format: npz" in caught.value.hint
    else:
        assert runner.perform(task, run).summary.format == "npz"


def test_an_exported_program_is_handed_over_only_where_it_is_allowed(bench: Workbench, lay_out) -> None:
    model_id = bench.add_model({"net.onnx": b"x"})
    with bench.database.write() as session:
        session.execute(update(Model).where(Model.id == model_id).values(format="pt2"))
        session.execute(update(ModelFile).where(ModelFile.model_id == model_id).values(path="net.pt2", is_main=False))
    job_id = bench.submit(model_id=model_id)
    with pytest.raises(Pt2NotAllowedError):
        lay_out(job_id)
    task = InspectModelTask.model_validate_json(lay_out(job_id, allow_pt2=True).read_bytes())
    assert (task.format, Path(task.model_path).read_bytes()) == ("pt2", b"x")
