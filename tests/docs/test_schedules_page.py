"""What docs/schedules.md shows is taken by the service, and what it names is all that there is."""

from __future__ import annotations

import json
import re
from typing import get_args

from service.contracts.regression import Clause, LastPass, OfAlias, OfJob, RegressionGate
from service.schedules.schemas import RunState, ScheduleChange, ScheduleCreate
from service.settings import Settings
from tests.support.source import ROOT

PAGE = ROOT / "docs" / "schedules.md"


def test_the_schedule_of_the_page_is_one() -> None:
    block = PAGE.read_text().split("```json\n")[1].split("```")[0]
    body = ScheduleCreate.model_validate(json.loads(block))
    assert body.gate.clauses
    assert body.promote_to == "prod"


def test_the_page_names_all_states_clauses_and_baselines() -> None:
    text = PAGE.read_text()
    states = re.findall(r"^\| `(\w+)` \|", text.split("| state |")[1].split("\n\n")[0], re.MULTILINE)
    assert set(states) == set(get_args(RunState))
    kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(Clause)[0])}
    clauses = re.findall(r"^\| `(\w+)` \|", text.split("| clause |")[1].split("\n\n")[0], re.MULTILINE)
    assert set(clauses) == kinds
    for baseline in (LastPass, OfJob, OfAlias):
        (word,) = get_args(baseline.model_fields["kind"].annotation)
        assert f'{{"kind": "{word}"' in text


def test_the_page_tells_the_numbers_that_hold() -> None:
    text = PAGE.read_text()
    assert f"`misfire_grace_seconds` ({ScheduleCreate.model_fields['misfire_grace_seconds'].default})" in text
    assert Settings().schedule_run_retention_seconds == 90 * 86_400
    assert "forgotten after 90 days" in text
    assert RegressionGate().on_undecided == "fail"
    told = {"name", "gate", "template", "promote_to", "cron", "timezone"}
    assert all(f"`{field}`" in text for field in ScheduleChange.model_fields.keys() - told)
