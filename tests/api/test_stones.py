"""What a person meets first over HTTP: pages to read, pointers into what was sent, faults told once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.front import Front, pointers, problem


@pytest.mark.parametrize(
    ("name", "word"), [("quark", "calibrate_method"), ("config", "per_channel"), ("metrics", "top1")]
)
def test_pages_are_served_as_markdown(sqlite_front: Front, name: str, word: str) -> None:
    page = sqlite_front.http.get(f"/docs/{name}.md")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/markdown")
    assert word in page.text
    assert f"/docs/{name}.md" in sqlite_front.http.get("/openapi.json").json()["info"]["description"]


def test_other_pages_are_not_there(sqlite_front: Front) -> None:
    assert sqlite_front.http.get("/docs/secrets.md").status_code in (404, 422)


def test_a_bare_quark_config_is_told_its_envelope(sqlite_front: Front) -> None:
    body = sqlite_front.job_body(config={"per_channel": True, "calibrate_method": "CalibrationMethod.MinMax"})
    told = problem(sqlite_front.http.post("/v1/jobs", json=body), 422, "invalid-config")
    assert pointers(told) == ["/config"]
    assert '"format": "quark"' in told["hint"]


def test_checks_of_a_translated_config_point_at_what_was_sent(sqlite_front: Front) -> None:
    """The gate judges accuracy on random data: found behind the translation, by a check of the whole request."""
    quark: dict[str, Any] = {
        "format": "quark",
        "config": {"per_channel": True, "include_cle": False, "extra_options": {"UseRandomData": True}},
        "evaluation": {"gate": {"min_sqnr_db": 5}},
    }
    body = {"model_id": sqlite_front.ready_model(), "config": quark}
    told = problem(sqlite_front.http.post("/v1/jobs", json=body), 422, "invalid-config")
    assert pointers(told) == ["/config/evaluation/gate/min_sqnr_db"]


@pytest.mark.parametrize("config", [{"weight": {"dtype": "int9"}}, {"seed": -1, "activaton": {}}])
def test_each_fault_is_told_once(sqlite_front: Front, config: dict[str, Any]) -> None:
    told = problem(sqlite_front.http.post("/v1/jobs", json=sqlite_front.job_body(config=config)), 422, "invalid-config")
    assert len(pointers(told)) == len(set(pointers(told))) == len(config)
    for pointer in pointers(told):
        assert told["detail"].count(pointer) == 1


@pytest.mark.parametrize("preset", ["int8_dynamic", "int4_weights", "float16_model"])
def test_recipes_that_take_no_ranges_need_no_calibration_dataset(sqlite_front: Front, preset: str) -> None:
    body = {"model_id": sqlite_front.ready_model(), "config": {"preset": preset}}
    made = sqlite_front.http.post("/v1/jobs", json=body)
    assert made.status_code == 202, made.text
    assert made.json()["calibration_dataset_id"] is None
