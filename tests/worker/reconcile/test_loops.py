"""All loops together."""

from __future__ import annotations

import threading

from tests.worker.reconcile.rounds import messages
from tests.worker.workbench import finish, wait_for
from worker.reconcile.loops import run_forever, run_once


def test_one_round_of_everything(bench, reconciler):
    bench.submit()
    done = run_once(reconciler)
    assert done["redispatch"] == 1
    assert set(done) == {loop.name for loop in reconciler.loops}


def test_trouble_in_one_loop_does_not_stop_the_others(bench, reconciler, caplog):
    """The store's folder is gone: garbage collection fails, jobs are still sent."""
    bench.store.incoming.rename(bench.store.incoming.with_name("gone"))
    bench.store.incoming.symlink_to(bench.store.incoming)  # cannot be read
    failed = "reconcile.failed loop=collect_leftovers"
    thread = threading.Thread(target=run_forever, args=(reconciler, lambda: len(messages(bench)) > 0))
    thread.start()
    wait_for(lambda: failed in caplog.text)
    bench.submit()
    finish(thread)
    assert not thread.is_alive()
