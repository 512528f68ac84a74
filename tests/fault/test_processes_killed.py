"""Processes that are killed or stopped: the job is done once, by somebody, and nobody has to ask for it again."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from tests.fault.client import ADAROUND, Client
from tests.fault.harness.faults import ASKED_TO_END
from tests.fault.ledger import Ledger, check
from tests.support.tiny import Tiny
from tests.worker.workbench import wait_for


def model_digest(installation, job_id):
    with installation.client() as http:
        (artifact,) = [item for item in http.artifacts(job_id) if item.kind == "model"]
    return artifact.sha256


def test_a_job_is_done_once(client, judge, installation):
    job_id = client.submit()
    judge()
    job = installation.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 1)


def test_a_killed_runner_is_tried_again(client, judge, installation):
    """The slot is free at once: no lease has to run out."""
    installation.hold("after_runner_start")
    job_id = client.submit()
    installation.wait_held("after_runner_start")
    (runner,) = wait_for(installation.runners, message="no runner")
    os.kill(runner, signal.SIGKILL)
    installation.release("after_runner_start")
    judge()
    job = installation.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert "lease_expired" not in installation.reconciler.said()


def test_a_worker_killed_amid_adaround_goes_on_at_the_layer(client, judge, installation):
    """The next attempt takes over the finished layers, and gives the bytes of an undisturbed run."""
    installation.hold("after_layer")
    job_id = client.submit(config=ADAROUND)
    installation.wait_held("after_layer")
    installation.worker.kill()
    installation.release("after_layer")
    judge()
    assert installation.job(job_id).attempt == 2
    assert any("taken over" in message for message in installation.logged(job_id))
    shutil.rmtree(installation.settings.checkpoint_dir)  # nothing of it helps the other
    installation.settings.checkpoint_dir.mkdir()
    shutil.rmtree(installation.settings.cache_dir, ignore_errors=True)
    calm = client.submit(config=ADAROUND)
    judge()
    assert model_digest(installation, job_id) == model_digest(installation, calm)


def test_everything_killed_at_once(client, judge, installation):
    installation.hold("after_runner_start")
    running = client.submit()
    installation.wait_held("after_runner_start")
    queued = [client.submit() for _ in range(2)]
    for process in installation.processes:
        process.kill()
    assert installation.leftovers() == {}
    judge()
    assert {installation.job(job_id).state for job_id in [running, *queued]} == {"succeeded"}
    assert installation.job(running).attempt == 2


@pytest.mark.parametrize("place", ["after_runner_start", "after_runner_end"])
def test_a_zombie_writes_nothing(place, client, judge, installation):
    """A worker that stood still for longer than its lease wakes up, and finds the job in other hands."""
    zombie = installation.worker
    installation.hold(place)
    job_id = client.submit()
    installation.wait_held(place)
    installation.freeze(zombie)
    installation.release(place)
    installation.wait_for(
        lambda: "job.lease_expired" in installation.states_told(job_id), "the lease of the stopped worker never ran out"
    )
    zombie.resume()
    judge()
    job = installation.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert "job.fenced" in zombie.said()


def test_sigterm_to_everything_leaves_nothing(make_installation, tiny: Tiny):
    """Running jobs go back into the queue; every process ends by itself, with exit code 0."""
    with make_installation() as installation:
        ledger = Ledger(installation.folder / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(tiny))
        job_id = client.submit(config=ADAROUND)
        installation.wait_for_state(job_id, "running")
        assert set(installation.stop().values()) <= set(ASKED_TO_END)
        assert installation.leftovers() == {}
        assert installation.job(job_id).state in {"queued", "succeeded"}
        installation.start()
        installation.quiesce()
        client.close()
        ledger.close()
        verdict = check(ledger, installation.database, installation.store)
        assert verdict.clean, verdict.told()
        assert installation.job(job_id).state == "succeeded"
