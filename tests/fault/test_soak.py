"""A minute of bad luck; ``make soak`` has more of it."""

from __future__ import annotations

import random

from tests.fault.harness import LONG
from tests.fault.soak import Plan, run

PLAN = (
    Plan(jobs=500, seconds=300.0, seed=random.randrange(10**6)) if LONG else Plan(jobs=16, seconds=30.0, seed=20261123)
)


def test_nothing_is_lost_and_nothing_done_twice(backend, request, tmp_path):
    servers = request.getfixturevalue("servers") if backend == "servers" else None
    outcome = run(PLAN, backend, tmp_path, servers)
    print(outcome.told())
    assert outcome.verdict.clean, outcome.told()
    assert outcome.faults.total() > 3
    assert outcome.verdict.states["succeeded"] > PLAN.jobs / 2
