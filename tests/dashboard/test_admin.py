"""The pages of keys, tenants, the audit log and workers, as a browser without scripts uses them."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from sqlalchemy import text

from service.audit import service as audit_service
from service.audit.changes import changes_between
from service.audit.service import note
from service.contracts.quota import Quota
from service.dashboard import audit
from service.keys import actions as key_actions
from service.keys.schemas import KeyCreate, ScopeMissingError
from service.principal import DEFAULT_TENANT, Principal
from service.queues import repository as workers
from service.quotas import router as quotas
from tests.dashboard.form_of import Form
from tests.dashboard.signing import BY, new_key, sign_in
from tests.support.front import Front

KEY = re.compile(r">(qm_[A-Za-z0-9_-]+)<")


@pytest.fixture
def guard(closed: Front) -> str:
    return sign_in(closed, "operator")


def taken(front: Front, key: str) -> bool:
    """Whether the API takes a key."""
    front.http.cookies, kept = type(front.http.cookies)(), front.http.cookies
    answer = front.http.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})
    front.http.cookies = kept
    return answer.status_code == 200


def test_a_key_is_made_replaced_and_ended(closed: Front) -> None:
    guard = sign_in(closed, "admin")
    assert closed.http.get("/admin").headers["location"] == "/keys"
    form = Form(closed.http.get("/keys").text, "key")
    made = closed.http.post("/keys", data=form.with_fields({"name": "nightly-ci", "scope": "read", "days": "7"}))
    assert (made.status_code, made.headers["cache-control"]) == (200, "no-store")
    first = KEY.search(made.text)
    assert first is not None and taken(closed, first[1])
    shown = closed.http.get("/keys").text
    assert "nightly-ci" in shown and first[1] not in shown
    (seen,) = [one for one in key_actions.list_keys(closed.app, DEFAULT_TENANT) if one.name == "nightly-ci"]
    assert (seen.scope, seen.state) == ("read", "good") and seen.expires_at is not None
    replaced = closed.http.post(f"/keys/{seen.id}/rotate", data={"csrf": guard})
    assert (replaced.status_code, replaced.headers["cache-control"]) == (200, "no-store")
    second = KEY.search(replaced.text)
    assert second is not None and taken(closed, second[1]) and taken(closed, first[1])
    ended = closed.http.post(f"/keys/{seen.id}/revoke", data={"csrf": guard})
    assert ended.headers["location"] == "/keys"
    assert taken(closed, second[1]) and not taken(closed, first[1])
    theirs = new_key(closed, "read", tenant="other", name="their-key")
    for key_id in (seen.id, theirs.row.id):
        for deed in ("rotate", "revoke"):
            assert closed.http.post(f"/keys/{key_id}/{deed}", data={"csrf": guard}).status_code == 404
    assert taken(closed, theirs.text)
    page = closed.http.get("/keys").text
    assert "revoked" in page and "their-key" not in page
    log = closed.http.get("/audit").text
    assert all(word in log for word in ("key.create", "key.rotate", "key.revoke"))
    assert f'<a href="/keys"><bdi title="{seen.id}">nightly-ci</bdi></a>' in log
    assert f'<bdi title="{seen.id}@' in log
    assert "verify" not in log and "Open tenant" not in closed.http.get("/tenants").text
    assert closed.http.get("/audit", params={"tenant": "other"}).status_code == 403


def test_nobody_makes_or_ends_a_key_above_their_own(closed: Front) -> None:
    above, by = new_key(closed, "admin"), Principal(DEFAULT_TENANT, "key_x", "manage")
    for deed in (
        lambda: key_actions.create(closed.app, by, KeyCreate(name="more", scope="admin")),
        lambda: key_actions.rotate(closed.app, by, above.row.id, grace_seconds=0.0),
        lambda: key_actions.revoke(closed.app, by, above.row.id),
    ):
        with pytest.raises(ScopeMissingError):
            deed()
    assert taken(closed, above.text)
    assert taken(closed, key_actions.create(closed.app, by, KeyCreate(name="less", scope="submit")).body["key"])


def test_quotas_are_shown_with_their_use(closed: Front, guard: str) -> None:
    quotas.set_quota(closed.app, BY, DEFAULT_TENANT, Quota(stored_bytes=2048, jobs_per_day=4))
    closed.http.post("/v1/uploads", json={"filename": "m.onnx", "size_bytes": 1024}, headers={"X-CSRF-Token": guard})
    shown = closed.http.get("/tenants").text.partition('id="quota"')[2]
    stored = shown.partition("Storage")[2].partition("</tr>")[0]
    assert "own limit" in stored and "1.00 KiB" in stored and "2.00 KiB" in stored and 'value="0.5"' in stored
    assert "none" in shown.partition("Running jobs")[2].partition("</tr>")[0]


def test_limits_of_a_tenant_are_set_with_a_form(closed: Front, guard: str) -> None:
    sent_on = closed.http.get("/tenants", params={"of": "other"})
    assert sent_on.headers["location"] == "/tenants/other"
    assert closed.http.get("/admin/quotas/other").headers["location"] == "/tenants/other"
    asked = {"csrf": guard, "stored_bytes": "2048", "jobs_per_day": "None", "cpu_seconds_per_day": "1.5"}
    assert closed.http.post("/tenants/other", data=asked).status_code == 303
    own = quotas.get(closed.app, "other").own
    assert own == {"stored_bytes": 2048, "jobs_per_day": None, "cpu_seconds_per_day": 1.5}
    form = Form(closed.http.get("/tenants/other").text, "quota")
    assert (form["stored_bytes"], form["jobs_per_day"], form["open_streams"]) == ("2048", "none", "")
    assert closed.http.post("/tenants/other", data=form.with_fields({"jobs_per_day": "7"})).status_code == 303
    assert quotas.get(closed.app, "other").own == own | {"jobs_per_day": 7}
    assert quotas.get(closed.app, DEFAULT_TENANT).own == {}
    listed = closed.http.get("/tenants").text
    assert 'href="/tenants/other"' in listed and "3 own limits" in listed


def test_the_audit_is_paged_and_its_chain_verified(closed: Front, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_LIMIT", 2)
    for k in range(3):
        new_key(closed, "read", name=f"key {k}")
    seen, path = [], "/audit"
    while path:
        page = closed.http.get(path).text
        seen += [int(one) for one in re.findall(r'data-label="Entry">(\d+) <', page)]
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = "" if following is None else following[1].replace("&amp;", "&")
    assert seen == [4, 3, 2, 1]
    assert "No matching entries" in closed.http.get("/audit", params={"tenant": "other"}).text
    assert closed.http.get("/audit", params={"tenant": "'; --"}).status_code == 422
    good = closed.http.post("/audit/verify", data={"csrf": guard})
    assert good.status_code == 200 and "The audit log is intact" in good.text and "4 entries" in good.text
    assert 'href="/audit?before=3"' in good.text
    with closed.app.database.write() as session:
        session.execute(text("UPDATE audit_events SET actor = 'nobody' WHERE seq = 2"))
    bad = closed.http.post("/audit/verify", data={"csrf": guard})
    assert "The audit log was changed" in bad.text and "Entry 2 was changed" in bad.text


def test_the_audit_log_is_filtered_by_who_what_and_when(closed: Front, guard: str) -> None:
    made = new_key(closed, "read", name="nightly-ci")
    with closed.app.database.write() as session:
        by = Principal(DEFAULT_TENANT, made.row.id, "submit")
        note(session, by, "job.create", "job_1")
        note(session, by, "job.cancel", "job_1")
    audit_service.link(closed.app.database)
    at = {"create": "2026-03-01 23:59:59", "cancel": "2026-03-02 00:00:00"}
    with closed.app.database.write() as session:
        for verb, moment in at.items():
            seconds = datetime.fromisoformat(f"{moment}+00:00").timestamp()
            session.execute(
                text("UPDATE audit_events SET at = :at WHERE action = :of"), {"at": seconds, "of": f"job.{verb}"}
            )

    def actions(**asked: str) -> set[str]:
        shown = closed.http.get("/audit", params=asked)
        assert shown.status_code == 200
        return set(re.findall(r'data-label="Action">([^<]+)<', shown.text))

    jobs = {"job.create", "job.cancel"}
    assert actions() > jobs
    assert actions(action="job.*") == actions(actor="nightly-ci") == actions(actor=made.row.id) == jobs
    assert actions(action="job.cancel") == {"job.cancel"}
    assert actions(action="job_*") == actions(action="job") == actions(actor="nobody") == set()
    assert actions(action="job.*", until="2026-03-01") == {"job.create"}
    assert actions(action="job.*", since="2026-03-02") == {"job.cancel"}
    assert closed.http.get("/audit", params={"since": "2026-02-30"}).status_code == 422
    asked = {"action": "job.*", "since": "2026-03-02T00:00:00Z"}
    assert [one["action"] for one in closed.http.get("/v1/audit", params=asked).json()["items"]] == ["job.cancel"]
    asked = {"action": "job.*", "until": "2026-03-02T00:00:00Z"}
    assert [one["action"] for one in closed.http.get("/v1/audit", params=asked).json()["items"]] == ["job.create"]


def test_the_audit_log_tells_what_was_changed_and_no_secret(closed: Front, guard: str) -> None:
    for limit in ("7", "8"):
        assert closed.http.post("/tenants/other", data={"csrf": guard, "jobs_per_day": limit}).status_code == 303
    with closed.app.database.write() as session:
        by = Principal(DEFAULT_TENANT, "key_1", "submit")
        before, after = {"url": "https://a.example/T0K3N", "enabled": True}, {"url": "https://a.example/S3CR3T"}
        note(session, by, "webhook.update", "whk_1", changes=changes_between(before, after, hidden=frozenset({"url"})))
        note(session, by, "upload.append", "upl_1")
    page = closed.http.get("/audit").text
    words = [
        " ".join(re.sub(r"<[^>]+>", "", one).split()) for one in re.findall(r'"Changes">(.*?)</td>', page, re.DOTALL)
    ]
    assert words[:3] == ["url changedenabled: true → none", "jobs_per_day: 7 → 8", "jobs_per_day: default → 7"]
    assert "T0K3N" not in page and "S3CR3T" not in page
    assert "upload.append" not in page and "Show upload parts" in page
    assert "upload.append" in closed.http.get("/audit", params={"parts": "true"}).text
    assert "upload.append" in closed.http.get("/audit", params={"action": "upload.*"}).text
    told = closed.http.get("/v1/audit", params={"action": "tenant.set_quota"}).json()["items"]
    assert told[0]["changes"] == [{"field": "jobs_per_day", "before": "7", "after": "8"}]


def test_workers_are_shown(sqlite_front: Front) -> None:
    with sqlite_front.app.database.write() as session:
        workers.announce(session, "host-7", {"cpu": 3, "gpu": 3})
        workers.announce(session, "host-8", {"inspect": 4})
    shown = sqlite_front.http.get("/workers")
    overview = sqlite_front.http.get("/").text
    assert "2 workers, 0 of 7 slots busy" in shown.text
    assert '>2</a><span class="hint">0 of 7 slots busy' in overview
    assert shown.status_code == 200 and "host-7" in shown.text and "Reachable" in shown.text
