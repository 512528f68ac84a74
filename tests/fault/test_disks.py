"""A disk without room: jobs wait and say why, and nothing half written is ever seen."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.fault.conftest import DISK_MIB, told
from tests.fault.harness.disk import SmallDisk, small_disk
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow  # starts processes


@pytest.fixture
def full(disk: SmallDisk | None) -> SmallDisk:
    if disk is None:
        pytest.skip("no disk can be mounted here")
    return disk


@pytest.mark.long
def test_uploads_are_refused_and_reads_go_on(full, installation, client, judge):
    job_id = client.submit()
    installation.wait_for_state(job_id, "succeeded")
    with httpx.Client(base_url=installation.url, timeout=PATIENCE_SECONDS) as http:

        def refused() -> httpx.Response | None:
            """What a full disk is answered with; the scratch folder of the job may go, and give room, only now."""
            full.fill()
            made = http.post("/v1/uploads", json={"filename": "x.onnx", "size_bytes": 1000})
            if made.is_success:
                made = http.put(f"/v1/uploads/{made.json()['id']}/content", content=b"x" * 1000)
            return None if made.is_success else made

        made = installation.wait_for(refused, "the disk is not full")
        assert (made.status_code, made.json()["code"]) == (507, "storage-full")
        assert http.get(f"/v1/jobs/{job_id}").json()["state"] == "succeeded"
        assert http.get(f"/v1/jobs/{job_id}/report").is_success
        for artifact in http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"]:
            assert http.get(artifact["links"]["content"]).is_success
    full.free()
    judge()


def refusals(installation) -> list[str]:
    return re.findall(r"database_away|not_concluded", installation.worker.said())


@pytest.mark.long
@pytest.mark.parametrize("place", ["after_runner_start", "before_succeed_commit"])
def test_a_database_without_room_while_everybody_works(place, make_installation, backend, tiny):
    """All data on the small disk. What cannot be stored is refused with 507 or 503, and reads go on. Worker and
    reconciler wait, for longer than a lease; nobody is blamed, and nothing is lost.
    """
    if backend != "files":
        pytest.skip("PostgreSQL has a disk of its own")
    with small_disk(DISK_MIB) as disk, make_installation(home=disk.folder / "home") as installation:
        with told(installation, tiny) as client:
            done = client.submit("done")
            installation.wait_for_state(done, "succeeded")
            installation.hold(place)
            job_id = client.submit("running")
            installation.wait_held(place)
            disk.fill()
            installation.release(place)
            refused = [client.submit_once(f"full-{number}") for number in range(8)]
            assert None in refused, "the disk was not full"
            assert httpx.get(f"{installation.url}/v1/jobs/{done}", timeout=PATIENCE_SECONDS).is_success
            installation.wait_for(lambda: len(refusals(installation)) > 10, "the worker does not wait")
            disk.free()
            for number in range(8):
                client.submit(f"full-{number}")
        assert all(process.alive for process in installation.processes), "somebody has not outlived it"
        job = installation.job(job_id)
        assert (job.state, job.attempt - job.interruptions) == ("succeeded", 1), "the attempt was charged"
        assert "reconcile.failed" not in installation.reconciler.said()
