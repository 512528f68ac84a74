"""``quantmill worker`` and ``quantmill reconcile`` as processes of their own."""

from __future__ import annotations

import signal

import pytest

from service.contracts.command_errors import InvalidSettingsError
from service.queues import repository as queues
from service.queues.repository import live_queues
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import worker
from tests.worker.workbench import Workbench, wait_for
from worker.process import OUTBOXES, run_reconciler_process, run_worker_process

pytestmark = pytest.mark.slow  # starts processes


def test_a_worker_says_what_it_takes_and_takes_nothing_during_its_shutdown(bench: Workbench) -> None:
    def seen() -> tuple[set[str], dict[str, queues.WorkerFigures]]:
        with bench.database.read() as session:
            return live_queues(session, {"cpu", "gpu", "inspect"}), queues.worker_figures(session)

    assert seen() == (set(), {})
    with worker(bench, "--queues", "gpu,inspect", "--devices", "0,1") as process:
        crew = queues.WorkerFigures(workers=1, deaf=0, slots=2, busy=0)
        wait_for(lambda: seen() == ({"gpu", "inspect"}, {"gpu": crew, "inspect": crew}), message=str(seen()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert seen() == (set(), {}), "it says that it is gone"
    assert "spares=False" in (bench.folder / "worker.log").read_text(), "jobs with GPUs could have none of them"


def test_one_round_of_the_reconciler_says_what_it_did_and_an_unknown_queue_is_refused(bench: Workbench) -> None:
    done = run_reconciler_process(bench.settings, once=True)
    assert done is not None
    assert done["dispatch"] == 0
    assert {"expire_leases", "collect_files", *OUTBOXES} < set(done)
    with pytest.raises(InvalidSettingsError, match="'tpu'"):
        run_worker_process(bench.settings, ("cpu", "tpu"))
