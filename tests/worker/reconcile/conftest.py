"""A reconciler over a real database and a real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import trustme

from tests.support.scripted import Scripted
from tests.support.webhooks import answering, over_tls
from tests.worker.workbench import Workbench
from worker.reconcile.loops import Loop, make_loops


@pytest.fixture
def loops(bench: Workbench) -> tuple[Loop, ...]:
    return make_loops(bench.settings, bench.database, bench.store, None, is_new=False)


@pytest.fixture
def rounds(loops: tuple[Loop, ...]) -> dict[str, Callable[[], int]]:
    """A round of each loop, by the loop's name."""
    return {loop.name: loop.round for loop in loops}


@pytest.fixture(scope="package")
def authority() -> trustme.CA:
    """Whom receivers are believed by."""
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Scripted]:
    """A receiver that is content."""
    with over_tls(answering(200), authority) as running:
        yield running
