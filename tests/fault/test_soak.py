"""Half a minute of bad luck; ``make soak`` has more of it."""

from __future__ import annotations

import pytest

from tests.fault.soak import Plan, main, run

PLAN = Plan(jobs=16, seconds=30.0, seed=20261123)


@pytest.mark.slow
@pytest.mark.long
def test_nothing_is_lost_and_nothing_done_twice(backend, request, tmp_path):
    servers = request.getfixturevalue("servers") if backend == "servers" else None
    outcome = run(PLAN, backend, tmp_path, servers)
    print(outcome.told())
    assert outcome.verdict.clean, outcome.told()
    assert outcome.faults.total() > 3
    assert outcome.verdict.states["succeeded"] > PLAN.jobs / 2


def test_a_back_end_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAK_BACKEND", "mysql")
    with pytest.raises(SystemExit, match="'mysql': take one of sqlite, postgres, both"):
        main()
