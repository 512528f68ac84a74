"""Half a minute of bad luck; ``make soak`` has more of it."""

from __future__ import annotations

import pytest

from tests.fault.soak import Plan, run

pytestmark = [pytest.mark.slow, pytest.mark.long]
PLAN = Plan(jobs=16, seconds=30.0, seed=20261123)


def test_nothing_is_lost_and_nothing_done_twice(backend, request, tmp_path):
    servers = request.getfixturevalue("servers") if backend == "servers" else None
    outcome = run(PLAN, backend, tmp_path, servers)
    print(outcome.told())
    assert outcome.verdict.clean, outcome.told()
    assert outcome.faults.total() > 3
    assert outcome.verdict.states["succeeded"] > PLAN.jobs / 2
