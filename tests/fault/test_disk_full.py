"""A disk without room: jobs wait and say why, and nothing half written is ever seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.fault.client import Client
from tests.fault.harness import LONG
from tests.fault.harness.disk import SmallDisk, small_disk
from tests.fault.harness.installation import LEASE_SECONDS, Installation
from tests.fault.ledger import Ledger, check
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny

SIZE_MIB = 24


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with small_disk(SIZE_MIB) as disk:
        yield disk


@pytest.fixture(scope="module")
def shared(make_installation, disk: SmallDisk) -> Iterator[Installation]:
    """Stored files and scratch folders lie on the small disk; the database does not."""
    places = {
        "QUANTMILL_STORAGE_DIR": str(disk.folder / "store"),
        "QUANTMILL_SCRATCH_DIR": str(disk.folder / "scratch"),
    }
    with make_installation(**places) as installation:
        yield installation


@pytest.fixture(scope="module")
def inputs(shared: Installation, tiny: Tiny) -> dict[str, str]:
    return shared.upload(tiny)


@pytest.fixture(scope="module")
def ledger(shared: Installation) -> Iterator[Ledger]:
    with closing(Ledger(shared.folder / "ledger.jsonl")) as ledger:
        yield ledger


@pytest.fixture(autouse=True)
def _room(disk: SmallDisk) -> Iterator[None]:
    disk.free()
    yield
    disk.free()


@pytest.mark.parametrize("place", ["after_claim", "after_runner_start", "after_runner_end", "before_artifact_fsync"])
def test_a_disk_that_fills_up_while_a_job_runs(place, disk, installation, client, judge):
    """The job waits, is not charged, and is done once there is room."""
    installation.hold(place)
    job_id = client.submit()
    installation.wait_held(place)
    disk.fill()
    installation.release(place)

    def waits() -> bool:
        job = installation.job(job_id)
        assert job.state != "failed", job.error
        return job.state == "succeeded" or (job.waiting or {}).get("code") == "storage-full"

    installation.wait_for(waits, "the job does not say that it waits for room")
    disk.free()
    judge()
    job = installation.job(job_id)
    assert job.state == "succeeded"
    assert job.attempt - job.interruptions == 1, "the attempt was charged"


def test_uploads_are_refused_and_reads_go_on(disk, installation, client, judge):
    job_id = client.submit()
    installation.wait_for_state(job_id, "succeeded")
    with httpx.Client(base_url=installation.url, timeout=PATIENCE_SECONDS) as http:

        def refused() -> httpx.Response | None:
            """What a full disk is answered with; the scratch folder of the job may go, and give room, only now."""
            disk.fill()
            made = http.post("/v1/uploads", json={"filename": "x.onnx", "size_bytes": 1000})
            if made.is_success:
                made = http.put(f"/v1/uploads/{made.json()['id']}/content", content=b"x" * 1000)
            return None if made.is_success else made

        made = installation.wait_for(refused, "the disk is not full")
        assert made.status_code == 507, made.text
        assert made.json()["code"] == "storage-full"
        assert http.get(f"/v1/jobs/{job_id}").json()["state"] == "succeeded"
        assert http.get(f"/v1/jobs/{job_id}/report").is_success
        for artifact in http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"]:
            assert http.get(artifact["links"]["content"]).is_success
    judge()


PLACES = ("after_claim", "after_runner_start", "after_runner_end", "before_artifact_fsync", "before_succeed_commit")


@pytest.mark.parametrize("place", PLACES if LONG else ("after_runner_start", "before_succeed_commit"))
def test_a_database_without_room_while_everybody_works(place, make_installation, backend, tiny, tmp_path):
    """All data on the small disk. What cannot be stored is refused with 507 or 503, and reads go on. Worker and
    reconciler wait, for longer than a lease; nobody is blamed, and nothing is lost.
    """
    if backend != "files":
        pytest.skip("PostgreSQL has a disk of its own")
    with small_disk(SIZE_MIB) as disk, make_installation(home=disk.folder / "home") as installation:
        ledger = Ledger(tmp_path / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(tiny))
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
        time.sleep(2 * LEASE_SECONDS)
        disk.free()
        for number in range(8):
            client.submit(f"full-{number}")
        installation.quiesce()
        assert all(process.alive for process in installation.processes), "somebody has not outlived it"
        job = installation.job(job_id)
        assert (job.state, job.attempt - job.interruptions) == ("succeeded", 1), "the attempt was charged"
        assert "reconcile.failed" not in installation.reconciler.said()
        client.close()
        ledger.close()
        verdict = check(ledger, installation.database, installation.store)
        assert verdict.clean, verdict.told()
