"""Where a job goes: priority, device, queue and size, as they are asked for, refused and shown."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.config import QuantizationConfig
from service.jobs.queues import is_short
from service.workers.repository import announce, note_deaf
from tests.support.front import Front, pointers, problem

CUDA = {"algorithms": [{"method": "cross_layer_equalization"}, {"method": "adaround", "optim_device": "cuda:0"}]}
INFER = {"algorithms": [{"method": "adaround", "infer_device": "rocm"}]}
QUARK = {
    "format": "quark",
    "config": {
        "global_quant_config": {
            "include_fast_ft": True,
            "extra_options": {"FastFinetune": {"OptimAlgorithm": "adaround", "OptimDevice": "cuda:0"}},
        }
    },
}  # fmt: skip


@pytest.fixture
def with_gpu(front: Front) -> Front:
    with front.desk.database.write() as session:
        announce(session, "one with a GPU", ("gpu",), slots=2)
    return front


def validated(front: Front, **body: Any) -> Any:
    answer = front.http.post("/v1/jobs:validate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_job_shows_its_priority_device_queue_and_size(front: Front) -> None:
    job_id = front.new_job(priority=17, device="cpu")
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert {name: job[name] for name in ("priority", "device", "queue", "size_class")} == {
        "priority": 17, "device": "cpu", "queue": "cpu", "size_class": "short",
    }  # fmt: skip
    plain = front.http.get(f"/v1/jobs/{front.new_job()}").json()
    assert (plain["priority"], plain["device"], plain["queue"]) == (0, "auto", "cpu")


def test_a_priority_out_of_bounds_is_refused(sqlite_front: Front) -> None:
    for priority in (-101, 101, 1.5, "high"):
        answer = sqlite_front.http.post("/v1/jobs", json=sqlite_front.job_body(priority=priority))
        assert pointers(problem(answer, 422, "invalid-request")) == ["/priority"]


@pytest.mark.parametrize(
    ("config", "pointer"),
    [(CUDA, "/config/algorithms/1/optim_device"), (INFER, "/config/algorithms/0/infer_device"), (None, "/device")],
)
def test_a_gpu_is_refused_where_there_is_none(sqlite_front: Front, config: Any, pointer: str) -> None:
    asked = {"device": "gpu"} if config is None else {"config": config}
    for path in ("/v1/jobs", "/v1/jobs:validate"):
        answer = sqlite_front.http.post(path, json=sqlite_front.job_body(**asked))
        body = problem(answer, 409, "no-gpu-worker")
        assert pointers(body) == [pointer]
        assert "--queues gpu" in body["hint"]


def test_a_config_for_a_gpu_contradicts_a_cpu(with_gpu: Front) -> None:
    answer = with_gpu.http.post("/v1/jobs", json=with_gpu.job_body(config=CUDA, device="cpu"))
    body = problem(answer, 422, "invalid-config")
    assert pointers(body) == ["/config/algorithms/1/optim_device"]
    assert "cuda:0" in body["detail"]


def test_an_error_of_the_device_points_into_a_config_of_quark(sqlite_front: Front) -> None:
    front = sqlite_front
    answer = front.http.post("/v1/jobs", json=front.job_body(config=QUARK))
    body = problem(answer, 409, "no-gpu-worker")
    (pointer,) = pointers(body)
    assert pointer.endswith("/FastFinetune/OptimDevice")


def test_jobs_go_where_validation_tells(with_gpu: Front) -> None:
    for changes, placed in (
        ({"config": CUDA}, ("gpu", "gpu", "long")),
        ({"config": {"algorithms": []}}, ("cpu", "cpu", "short")),
        ({"config": {"algorithms": []}, "device": "gpu"}, ("gpu", "gpu", "short")),
        ({"config": CUDA, "device": "gpu"}, ("gpu", "gpu", "long")),
    ):
        found = validated(with_gpu, **changes)
        assert (found["device"], found["queue"], found["size_class"]) == placed
        assert any("stand idle" in warning for warning in found["warnings"]) is (placed[1:] == ("gpu", "short"))
        job = with_gpu.http.get(f"/v1/jobs/{with_gpu.new_job(**changes)}").json()
        assert (job["queue"], job["device"]) == (placed[1], changes.get("device", "auto"))


@pytest.mark.parametrize(
    ("algorithms", "size_bytes", "samples", "short"),
    [
        ([], 100, 10, True),
        ([], 101, 10, False),
        ([], 100, 11, False),
        (["smooth_quant", "bias_correction"], 1, 1, True),
        (["adaround"], 1, 1, False),
        (["qat"], 1, 1, False),
        (["sensitivity"], 1, 1, False),
    ],
)
def test_what_counts_as_short(algorithms: list[str], size_bytes: int, samples: int, short: bool) -> None:
    config = QuantizationConfig.model_validate({"algorithms": [{"method": name} for name in algorithms]})
    assert is_short(config, size_bytes=size_bytes, samples=samples, most_bytes=100, most_samples=10) is short


def test_the_queues_are_shown(with_gpu: Front) -> None:
    job_id = with_gpu.new_job()
    with_gpu.new_job(config=CUDA)
    with_gpu.claim(job_id)
    answer = with_gpu.http.get("/v1/queues")
    found = {queue["name"]: queue for queue in answer.json()["items"]}
    assert set(found) == {"cpu", "gpu", "inspect"}
    assert (found["cpu"]["running"], found["cpu"]["queued"]) == (1, {"due": 0, "delayed": 0})
    assert found["cpu"]["oldest_due_age_seconds"] is None
    assert found["gpu"]["queued"] == {"due": 1, "delayed": 0}
    assert found["gpu"]["oldest_due_age_seconds"] >= 0
    assert (found["gpu"]["workers"], found["gpu"]["slots"]) == (1, {"total": 2, "busy": 0, "free": 2})
    assert [queue["deaf_workers"] for queue in found.values()] == [0, 0, 0]
    problem(with_gpu.http.get("/v1/queues?state=due"), 422, "invalid-request")


def test_deaf_workers_are_counted_in_each_of_their_queues(with_gpu: Front) -> None:
    with with_gpu.desk.database.write() as session:
        announce(session, "two queues", ("gpu", "inspect"), slots=3)
        note_deaf(session, "two queues", deaf=True)

    def crews() -> dict[str, tuple[int, int, int]]:
        items = with_gpu.http.get("/v1/queues").json()["items"]
        return {queue["name"]: (queue["workers"], queue["deaf_workers"], queue["slots"]["total"]) for queue in items}

    assert crews() == {"cpu": (0, 0, 0), "gpu": (2, 1, 5), "inspect": (1, 1, 3)}
    with with_gpu.desk.database.write() as session:
        note_deaf(session, "two queues", deaf=False)
    assert crews() == {"cpu": (0, 0, 0), "gpu": (2, 0, 5), "inspect": (1, 0, 3)}
