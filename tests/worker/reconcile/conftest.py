"""A reconciler over a real database, a real store and the real filesystem broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.jobs.dispatch import Dispatcher
from tests.worker.workbench import Workbench
from worker.broker import QueueDepths
from worker.reconcile.loops import Reconciler


@pytest.fixture
def reconciler(bench: Workbench) -> Iterator[Reconciler]:
    dispatcher = Dispatcher(bench.settings)
    depths = QueueDepths(bench.settings)
    yield Reconciler(bench.settings, bench.database, bench.store, dispatcher, depths, is_new=False)
    dispatcher.close()
