"""What is not there, on every route with an id in it: told by its noun, and by the parameter that names it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.front import Front, problem

PATHS = {
    "upload_id": ["GET /v1/uploads/{}", "PATCH /v1/uploads/{}", "PUT /v1/uploads/{}/content"],
    "model_id": ["GET /v1/models/{}", "DELETE /v1/models/{}", "POST /v1/models/{}/inspect"],
    "dataset_id": ["GET /v1/datasets/{}", "DELETE /v1/datasets/{}", "GET /v1/datasets/{}/thumbnails"],
    "job_id": [
        *("GET /v1/jobs/{}", "DELETE /v1/jobs/{}", "PATCH /v1/jobs/{}", "GET /v1/jobs/{}/events"),
        *("POST /v1/jobs/{}/cancel", "POST /v1/jobs/{}/retry", "POST /v1/jobs/{}/clone", "POST /v1/jobs/{}/hand-over"),
        *("GET /v1/jobs/{}/report", "GET /v1/jobs/{}/report.html", "GET /v1/jobs/{}/artifacts", "GET /v1/jobs/{}/logs"),
        *("GET /v1/jobs/{}/attestation", "GET /v1/jobs/{}/hand-over"),
    ],
    "artifact_id": ["GET /v1/artifacts/{}", "GET /v1/artifacts/{}/content"],
    "batch_id": ["GET /v1/batches/{}", "POST /v1/batches/{}/cancel", "GET /v1/batches/{}/events"],
    "schedule_id": ["GET /v1/schedules/{}", "POST /v1/schedules/{}/run", "POST /v1/schedules/{}/pause"],
    "webhook_id": ["GET /v1/webhooks/{}", "POST /v1/webhooks/{}/ping", "GET /v1/webhooks/{}/deliveries"],
    "inspection_id": ["GET /v1/inspections/{}"],
    "name": ["GET /v1/presets/{}", "GET /v1/targets/{}"],
}
PREFIXES = {
    **{"upload_id": "upl_", "model_id": "mdl_", "dataset_id": "dst_", "job_id": "job_", "artifact_id": "art_"},
    **{"batch_id": "bat_", "schedule_id": "sch_", "webhook_id": "whk_", "inspection_id": "ins_"},
}
# What each asks for besides, so that nothing is missing but the noun.
HEADERS = {"If-Match": "*", "Upload-Offset": "0"}
BODIES: dict[str, Any] = {"hand-over": {"targets": [{"kind": "post", "url": "https://x.example/"}]}}


@pytest.mark.both_databases
@pytest.mark.parametrize("name", PATHS)
def test_what_is_not_there_is_told_by_its_parameter(front: Front, name: str) -> None:
    for route in PATHS[name]:
        method, path = route.split()
        noun = path.split("/")[2].removesuffix("s").replace("batche", "batch")
        for tail in ("0" * 26, "x", "%00", "%FF"):
            body = BODIES.get(path.rpartition("/")[2], {}) if method in ("POST", "PATCH") and noun != "upload" else None
            given = path.format(PREFIXES.get(name, "") + tail)
            answer = front.http.request(method, given, headers=HEADERS, json=body)
            told = problem(answer, 404, f"{noun}-not-found")
            places = [(error["pointer"], error["where"]) for error in told["errors"]]
            assert places == [("", {"path": name})] or noun == "batch", given
    assert list(front.desk.store.incoming.iterdir()) == []


def test_a_path_is_no_id(sqlite_front: Front) -> None:
    problem(sqlite_front.http.get("/v1/uploads/..%2F..%2Fetc"), 404, "route-not-found")
    for noun in ("uploads/upl_", "artifacts/art_"):
        assert sqlite_front.http.head(f"/v1/{noun}{'0' * 26}").status_code in (404, 405)
