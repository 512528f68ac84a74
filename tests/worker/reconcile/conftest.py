"""A reconciler over a real database, a real store and the real filesystem broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme

from service.jobs.dispatch import Dispatcher
from tests.support.scripted import Scripted
from tests.support.webhooks import answering, over_tls
from tests.worker.workbench import Workbench
from worker.broker import QueueDepths
from worker.reconcile.loops import Reconciler


@pytest.fixture
def reconciler(bench: Workbench) -> Iterator[Reconciler]:
    dispatcher = Dispatcher(bench.settings)
    depths = QueueDepths(bench.settings)
    yield Reconciler(bench.settings, bench.database, bench.store, dispatcher, depths, is_new=False)
    dispatcher.close()


@pytest.fixture(scope="package")
def authority() -> trustme.CA:
    """Whom receivers are believed by."""
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Scripted]:
    """A receiver that is content."""
    with over_tls(answering(200), authority) as running:
        yield running
