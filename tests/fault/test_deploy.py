"""A new version is rolled out under a client that retries: it sees nothing of it."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from service.jobs.schemas import TERMINAL
from tests.fault.client import ADAROUND, Client
from tests.fault.harness import LONG
from tests.fault.harness.faults import ASKED_TO_END
from tests.fault.ledger import Ledger, check
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny, make_tiny

COUNT = 60 if LONG else 10
ROUNDS = 4 if LONG else 1
CONVS = 3
RESTARTS = 2


def test_api_and_workers_restarted_one_after_the_other(make_installation, tiny: Tiny):
    with make_installation(workers=2, apis=2) as installation:
        ledger = Ledger(installation.folder / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(tiny))
        begun = threading.Semaphore(0)

        def one(number):
            job_id = client.submit(f"deploy-{number}")
            begun.release()
            with installation.client() as http:
                return http.wait(job_id, timeout_seconds=3 * PATIENCE_SECONDS).state

        with ThreadPoolExecutor(4) as threads:
            ends = [threads.submit(one, number) for number in range(COUNT)]
            begun.acquire()
            codes = {}
            for _ in range(ROUNDS):
                for process in (*installation.apis, *installation.workers, installation.reconciler):
                    codes[process.name] = process.stop()
                    installation.start(process)
            assert set(codes.values()) <= set(ASKED_TO_END), codes
            assert {end.result() for end in ends} <= TERMINAL
        installation.quiesce()
        client.close()
        ledger.close()
        verdict = check(ledger, installation.database, installation.store)
        assert verdict.clean, verdict.told()
        for job_id in (entry.acknowledged[0] for entry in ledger.entries.values()):
            job = installation.job(job_id)
            assert job.attempt - job.interruptions == 1, "a shutdown was charged"


def test_a_new_version_loses_no_layer_that_is_finished(make_installation, tmp_path: Path):
    """The worker is restarted after one layer and the other; what an attempt has finished no later one does again."""
    model = make_tiny(tmp_path, convs=CONVS)
    with make_installation() as installation:
        ledger = Ledger(installation.folder / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(model))
        installation.hold("after_layer")
        job_id = client.submit(config=ADAROUND)
        kept: dict[Path, tuple[int, int]] = {}
        for _ in range(RESTARTS):
            installation.wait_held("after_layer")
            installation.worker.send(signal.SIGTERM)
            installation.release("after_layer")
            assert installation.worker.wait() in ASKED_TO_END
            found = finished_layers(installation)
            assert len(found) > len(kept), "nothing was finished, or it was not kept"
            assert kept.items() <= found.items(), "a finished layer was done again"
            kept = found
            installation.hold("after_layer")
            for process in (installation.api, installation.reconciler):
                process.stop()
            installation.start()
        installation.release("after_layer")
        installation.quiesce()
        job = installation.job(job_id)
        assert (job.state, job.attempt, job.interruptions) == ("succeeded", RESTARTS + 1, RESTARTS)
        with installation.client() as http:
            report = http.report(job_id).model_dump_json()
        assert f"{len(kept)} taken over from an earlier attempt" in report
        client.close()
        ledger.close()
        verdict = check(ledger, installation.database, installation.store)
        assert verdict.clean, verdict.told()


def finished_layers(installation) -> dict[Path, tuple[int, int]]:
    """What AdaRound has kept of layers for later attempts, and when each was written."""
    files = [path for path in installation.settings.checkpoint_dir.rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
