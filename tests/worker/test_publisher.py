"""The thread that sends messages: a process that may have no more threads for a while does not end it for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from service.jobs.dispatch import Dispatcher
from service.jobs.publisher import Publisher
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import Workbench, wait_for


@pytest.fixture
def publisher(bench: Workbench) -> Iterator[Publisher]:
    dispatcher = Dispatcher(bench.settings)
    publisher = Publisher(dispatcher, bench.database, pause_seconds=0.0)
    yield publisher
    publisher.close()
    dispatcher.close()


def sent(bench: Workbench, job_id: str) -> bool:
    return bench.job(job_id).dispatched_at is not None


@pytest.mark.parametrize("prefix", ["dispatch", "publisher"])
def test_messages_go_on_once_there_are_threads_again(bench, publisher, monkeypatch, prefix):
    refused = threading.Event()
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            refused.set()
            raise RuntimeError("can't start new thread")
        real(thread)

    first, second = bench.submit(), bench.submit()
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", start)
        publisher.put(first, "inspect")
        assert refused.wait(PATIENCE_SECONDS)
    publisher.put(second, "inspect")
    wait_for(lambda: sent(bench, second))


def test_an_error_that_nobody_foresaw_ends_no_thread(bench, publisher, monkeypatch, caplog):
    first, second = bench.submit(), bench.submit()
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise ZeroDivisionError("a bug of ours")

    with monkeypatch.context() as broken:
        broken.setattr(Dispatcher, "publish", fail)
        publisher.put(first, "inspect")
        assert failed.wait(PATIENCE_SECONDS)
    publisher.put(second, "inspect")
    wait_for(lambda: sent(bench, second))
    assert not sent(bench, first), "the reconciler sends it"
    assert any(record.message.startswith("dispatch.left_to_reconciler") for record in caplog.records)
