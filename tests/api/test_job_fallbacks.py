"""Jobs whose quantized model was too slow for their gate tell what they return in its place."""

from __future__ import annotations

import pytest

from service.contracts.report import FallbackKind
from service.jobs.outcome import QuantizeOutcome
from tests.support.front import Front, fallen_back, make_report


@pytest.mark.parametrize("kind", ["planned", "reduced", "float"])
def test_a_job_tells_which_model_it_returns_where_the_quantized_one_was_too_slow(
    front: Front, kind: FallbackKind
) -> None:
    fell, usual = front.new_job(), front.new_job()
    front.finish(fell, QuantizeOutcome(fallen_back(make_report("pass"), kind), ()))
    front.finish(usual, QuantizeOutcome(make_report("pass"), ()))
    told = {job["id"]: job["fallback"] for job in front.http.get("/v1/jobs").json()["items"]}
    assert told == {fell: kind, usual: None}
    assert front.http.get(f"/v1/jobs/{fell}").json()["fallback"] == kind
    events = front.http.get(f"/v1/jobs/{fell}/events", headers={"Accept": "application/json"}).json()["items"]
    assert events[-1]["data"]["fallback"] == kind
