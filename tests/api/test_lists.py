"""Lists tell what a table needs; what may have megabytes is told by id."""

from __future__ import annotations

from service.contracts.dataset import ArraySummary, MediaSummary
from tests.support.front import Front, dataset_summary, model_summary

ARRAYS = 130
MEDIA = MediaSummary(archive="tar", codecs={"PNG": 2}, classes=("cat", "dog"), smallest=(8, 8), largest=(8, 8))


def test_a_list_of_jobs_tells_no_config(front: Front) -> None:
    ranges = {f"tensor {number}": {"minimum": -1.0, "maximum": 1.0} for number in range(1000)}
    job_id = front.new_job(config={"preset": "int8", "tensor_ranges": ranges})
    (listed,) = front.http.get("/v1/jobs").json()["items"]
    whole = front.http.get(f"/v1/jobs/{job_id}").json()
    assert len(whole.pop("config")["tensor_ranges"]) == 1000
    assert whole.pop("reused_from") is None
    assert listed == whole


def test_a_list_of_datasets_leaves_out_classes_and_many_arrays(front: Front) -> None:
    arrays = {f"a{number:03}": ArraySummary(dtype="float32", shape=(4, 1)) for number in range(ARRAYS)}
    summary = dataset_summary(**arrays).model_copy(update={"media": MEDIA})
    dataset_id = front.ready_dataset(summary)
    (listed,) = front.http.get("/v1/datasets").json()["items"]
    whole = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert (len(whole["summary"]["arrays"]), whole["summary"]["arrays_left_out"]) == (ARRAYS, 0)
    assert whole["summary"]["media"]["classes"] == ["cat", "dog"]
    assert (len(listed["summary"]["arrays"]), listed["summary"]["arrays_left_out"]) == (100, ARRAYS - 100)
    assert listed["summary"]["media"] == {**whole["summary"]["media"], "classes": None}
    assert {**listed, "summary": None} == {**whole, "summary": None}


def test_a_list_of_models_leaves_out_the_names_of_nodes(front: Front) -> None:
    model_id = front.ready_model(model_summary(node_names=("conv", "relu")))
    front.new_model()  # one that is still being validated
    _, listed = front.http.get("/v1/models").json()["items"]
    whole = front.http.get(f"/v1/models/{model_id}").json()
    assert whole["summary"].pop("node_names") == ["conv", "relu"]
    assert listed["summary"].pop("node_names") is None
    assert listed == whole
