"""Jobs with a config of AMD Quark's: validated, refused with pointers, and stored with what was noted."""

from __future__ import annotations

import json
from typing import Any

from service.quark import read_config
from tests.support.front import Front, pointers, problem

QUARK = {
    "per_channel": True,
    "activation_type": "QuantType.QUInt8",
    "extra_options": {"CalibWorkerNum": 8, "BiasCorrection": True},
}
ENVELOPE = {"format": "quark", "config": QUARK, "evaluation": {"gate": {"metric": "top1_agreement", "min_value": 0}}}


def test_validate_shows_the_translation_and_its_notes(sqlite_front: Front) -> None:
    answer = sqlite_front.http.post("/v1/jobs:validate", json={"config": ENVELOPE})
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert shown["config"] == json.loads(read_config(ENVELOPE).model_dump_json())
    told = [warning for warning in shown["warnings"] if warning.startswith("/config/config")]
    assert len(told) == 2
    assert any("/config/config/extra_options/CalibWorkerNum: CalibWorkerNum has no effect here" in w for w in told)
    assert any("include_cle is not given" in warning for warning in told)


def test_a_job_keeps_the_translated_config_and_logs_the_notes(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job(config=ENVELOPE)
    job = sqlite_front.http.get(f"/v1/jobs/{job_id}").json()
    assert job["config"] == json.loads(read_config(ENVELOPE).model_dump_json())
    log = sqlite_front.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": "application/json"}).json()["items"]
    told = [event["data"]["message"] for event in log if event["type"] == "log"]
    assert len(told) == 2
    assert all(message.startswith("translated config: /config/config") for message in told)
    assert [event["seq"] for event in log] == [1, 2, 3]
    plain = sqlite_front.new_job(config=job["config"])
    log = sqlite_front.http.get(f"/v1/jobs/{plain}/events", headers={"Accept": "application/json"}).json()["items"]
    assert [event["type"] for event in log] == ["state"]


def refused(front: Front, path: str, body: dict[str, Any], code: str = "invalid-config") -> set[str]:
    return {found["pointer"] for found in problem(front.http.post(path, json=body), 422, code)["errors"]}


def test_what_cannot_be_translated_is_refused_with_its_pointer(sqlite_front: Front) -> None:
    quark = {"include_rotation": True, "extra_options": {"WeightSymetric": True, "Percentile": "x"}}
    for path in ("/v1/jobs:validate", "/v1/jobs"):
        assert refused(sqlite_front, path, {"config": {"format": "quark", "config": quark}}) == {
            "/config/config/include_rotation",
            "/config/config/extra_options/WeightSymetric",
            "/config/config/extra_options/Percentile",
        }
    # what the contract refuses is told of the key that was sent
    quark = {"calibrate_method": "CalibrationMethod.Percentile", "extra_options": {"Percentile": 40}}
    body = {"config": {"format": "quark", "config": quark}}
    place = "/config/config/extra_options/Percentile"
    assert refused(sqlite_front, "/v1/jobs:validate", body) == {place}
    assert refused(sqlite_front, "/v1/jobs:validate", {**body, "nam": 1}, "invalid-request") == {place, "/nam"}
    # and checks of the whole request point at what was sent: the gate judges accuracy on random data
    envelope = {**ENVELOPE, "config": {"include_cle": False, "extra_options": {"UseRandomData": True}}}
    envelope["evaluation"] = {"gate": {"min_sqnr_db": 5}}
    body = {"model_id": sqlite_front.ready_model(), "config": envelope}
    assert refused(sqlite_front, "/v1/jobs", body) == {"/config/evaluation/gate/min_sqnr_db"}


def test_a_bare_quark_config_is_told_its_envelope(sqlite_front: Front) -> None:
    body = sqlite_front.job_body(config={"per_channel": True, "calibrate_method": "CalibrationMethod.MinMax"})
    told = problem(sqlite_front.http.post("/v1/jobs", json=body), 422, "invalid-config")
    assert pointers(told) == ["/config"]
    assert '"format": "quark"' in told["hint"]


def test_presets_bear_quarks_names(sqlite_front: Front) -> None:
    listed = sqlite_front.http.get("/v1/presets").json()
    found = {item["name"]: item for item in listed["items"]}
    assert "XINT8" in found["xint8"]["aliases"]
    assert found["int8"]["execution"] == {"native": True, "statement": "8-bit integer kernels"}
    assert found["bf16"]["execution"]["native"] is False
    assert sqlite_front.http.get("/v1/presets/S8S8_AAWS").json() == found["s8s8_aaws"]
    pending = {item["name"]: item["reason"] for item in listed["pending"]}
    name = next(iter(pending))
    told = problem(sqlite_front.http.get(f"/v1/presets/{name}"), 404, "preset-not-found")
    assert pending[name] in told["detail"]
    told = problem(
        sqlite_front.http.post("/v1/jobs:validate", json={"config": {"preset": name}}), 422, "invalid-config"
    )
    assert told["errors"][0]["pointer"] == "/config/preset"


def test_a_function_of_a_python_program_is_refused_and_what_serves_instead_is_named(sqlite_front: Front) -> None:
    int8 = {"ActTargetQuantType": "QInt8", "WeightTargetQuantType": "QInt8"}
    mixing = {**int8, "Top1AccTarget": 0.1, "EvaluateFunction": "top1_acc"}
    options = {"extra_options": {"AutoMixprecision": mixing}}
    quark = {"activation_type": "VitisQuantType.QInt16", "include_auto_mp": True, **options}
    for path in ("/v1/jobs:validate", "/v1/jobs"):
        body = {**sqlite_front.job_body(), "config": {"format": "quark", "config": quark}}
        told = problem(sqlite_front.http.post(path, json=body), 422, "invalid-config")
        assert pointers(told) == ["/config/config/extra_options/AutoMixprecision/EvaluateFunction"]
        assert "top1" in told["hint"]
        assert "ONNX graph" in told["hint"]
    own = {"evaluation": {"metrics": [{"kind": "function", "name": "mine"}]}}
    assert refused(sqlite_front, "/v1/jobs:validate", {"config": own}) == {"/config/evaluation/metrics/0/kind"}
