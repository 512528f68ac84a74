"""The pages of keys, quotas, the audit and workers, as a browser without scripts uses them."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from service.contracts.quota import Quota
from service.dashboard import admin
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
    form = Form(closed.http.get("/admin").text, "key")
    made = closed.http.post("/admin/keys", data=form.with_fields({"name": "nightly-ci", "scope": "read", "days": "7"}))
    assert (made.status_code, made.headers["cache-control"]) == (200, "no-store")
    first = KEY.search(made.text)
    assert first is not None and taken(closed, first[1])
    shown = closed.http.get("/admin").text
    assert "nightly-ci" in shown and first[1] not in shown
    (seen,) = [one for one in key_actions.list_keys(closed.app, DEFAULT_TENANT) if one.name == "nightly-ci"]
    assert (seen.scope, seen.state) == ("read", "good") and seen.expires_at is not None
    replaced = closed.http.post(f"/admin/keys/{seen.id}/rotate", data={"csrf": guard})
    assert (replaced.status_code, replaced.headers["cache-control"]) == (200, "no-store")
    second = KEY.search(replaced.text)
    assert second is not None and taken(closed, second[1]) and taken(closed, first[1])
    ended = closed.http.post(f"/admin/keys/{seen.id}/revoke", data={"csrf": guard})
    assert ended.headers["location"] == "/admin"
    assert taken(closed, second[1]) and not taken(closed, first[1])
    theirs = new_key(closed, "read", tenant="other", name="their-key")
    for key_id in (seen.id, theirs.row.id):
        for deed in ("rotate", "revoke"):
            assert closed.http.post(f"/admin/keys/{key_id}/{deed}", data={"csrf": guard}).status_code == 404
    assert taken(closed, theirs.text)
    page = closed.http.get("/admin").text
    assert all(word in page for word in ("revoked", "key.create", "key.rotate", "key.revoke"))
    assert "their-key" not in page and "verify" not in page and "Limits…" not in page
    assert closed.http.get("/admin", params={"tenant": "other"}).status_code == 403


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
    shown = closed.http.get("/admin").text.partition('id="quota"')[2].partition('id="audit"')[0]
    stored = shown.partition("Bytes stored")[2].partition("</tr>")[0]
    assert "set for this tenant" in stored and "1.00 KiB" in stored and "2.00 KiB" in stored and 'value="0.5"' in stored
    assert "none" in shown.partition("Jobs that run")[2].partition("</tr>")[0]


def test_limits_of_a_tenant_are_set_with_a_form(closed: Front, guard: str) -> None:
    sent_on = closed.http.get("/admin/quotas", params={"of": "other"})
    assert sent_on.headers["location"] == "/admin/quotas/other"
    asked = {"csrf": guard, "stored_bytes": "2048", "jobs_per_day": "None", "cpu_seconds_per_day": "1.5"}
    assert closed.http.post("/admin/quotas/other", data=asked).status_code == 303
    own = quotas.get(closed.app, "other").own
    assert own == {"stored_bytes": 2048, "jobs_per_day": None, "cpu_seconds_per_day": 1.5}
    form = Form(closed.http.get("/admin/quotas/other").text, "quota")
    assert (form["stored_bytes"], form["jobs_per_day"], form["open_streams"]) == ("2048", "none", "")
    assert closed.http.post("/admin/quotas/other", data=form.with_fields({"jobs_per_day": "7"})).status_code == 303
    assert quotas.get(closed.app, "other").own == own | {"jobs_per_day": 7}
    assert quotas.get(closed.app, DEFAULT_TENANT).own == {}


def test_the_audit_is_paged_and_its_chain_verified(closed: Front, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_LIMIT", 2)
    for k in range(3):
        new_key(closed, "read", name=f"key {k}")
    seen, path = [], "/admin"
    while path:
        page = closed.http.get(path).text
        seen += [int(one) for one in re.findall(r'data-label="Row">(\d+)<', page)]
        following = re.search(r'rel="next" href="([^"#]+)#audit"', page)
        path = "" if following is None else following[1].replace("&amp;", "&")
    assert seen == [4, 3, 2, 1]
    assert "No row is like this" in closed.http.get("/admin", params={"tenant": "other"}).text
    assert closed.http.get("/admin", params={"tenant": "'; --"}).status_code == 422
    good = closed.http.post("/admin/audit/verify", data={"csrf": guard})
    assert good.status_code == 200 and "The chain holds" in good.text and "4 rows" in good.text
    assert 'href="/admin?before=3#audit"' in good.text
    with closed.app.database.write() as session:
        session.execute(text("UPDATE audit_events SET actor = 'nobody' WHERE seq = 2"))
    bad = closed.http.post("/admin/audit/verify", data={"csrf": guard})
    assert "The chain is broken" in bad.text and "Row 2 was changed" in bad.text


def test_workers_are_shown(sqlite_front: Front) -> None:
    with sqlite_front.app.database.write() as session:
        workers.announce(session, "host-7", {"cpu": 3})
    shown = sqlite_front.http.get("/workers")
    assert shown.status_code == 200 and "host-7" in shown.text and "reach it" in shown.text
