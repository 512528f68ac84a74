"""The thread that sends messages: a process that may have no more threads for a while does not end it for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.jobs.dispatch import Dispatcher
from service.jobs.publisher import Publisher
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import Workbench, threads_refused, wait_for


@pytest.fixture
def publisher(bench: Workbench) -> Iterator[Publisher]:
    dispatcher = Dispatcher(bench.settings)
    publisher = Publisher(dispatcher, bench.database, pause_seconds=0.0)
    yield publisher
    publisher.close()
    dispatcher.close()


@pytest.mark.parametrize("prefix", ["dispatch", "publisher"])
def test_messages_go_on_once_there_are_threads_again(bench, publisher, monkeypatch, prefix):
    first, second = bench.submit(), bench.submit()
    with monkeypatch.context() as exhausted:
        refused = threads_refused(exhausted, prefix)
        publisher.put(first, "inspect")
        assert refused.wait(PATIENCE_SECONDS)
    publisher.put(second, "inspect")
    wait_for(lambda: bench.job(second).dispatched_at)


def test_an_error_that_nobody_foresaw_ends_no_thread(bench, publisher, monkeypatch, caplog):
    first, second = bench.submit(), bench.submit()
    with monkeypatch.context() as broken:
        broken.setattr(Dispatcher, "publish", lambda *_: 1 / 0)
        publisher.put(first, "inspect")
        wait_for(lambda: "dispatch.left_to_reconciler" in caplog.text)
    publisher.put(second, "inspect")
    wait_for(lambda: bench.job(second).dispatched_at)
    assert bench.job(first).dispatched_at is None, "the reconciler sends it"
