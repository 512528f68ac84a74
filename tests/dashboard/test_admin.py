"""The page of keys, quotas and the audit, as a browser without scripts uses it."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from service.contracts.quota import Quota
from service.dashboard import admin
from service.keys import desk as keys_desk
from service.keys.errors import ScopeMissingError
from service.keys.schemas import KeyCreate
from service.principal import DEFAULT_TENANT, Principal, Scope
from service.quotas import desk as quotas
from tests.dashboard.form_of import Form
from tests.dashboard.signing import BY, new_key, sign_in
from tests.support.front import Front

KEY = re.compile(r">(qm_[A-Za-z0-9_-]+)<")


@pytest.fixture
def guard(closed: Front) -> str:
    return sign_in(closed, "admin")


def taken(front: Front, key: str) -> bool:
    """Whether the API takes a key."""
    front.http.cookies, kept = type(front.http.cookies)(), front.http.cookies
    answer = front.http.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})
    front.http.cookies = kept
    return answer.status_code == 200


def test_a_key_is_made_replaced_and_ended(closed: Front, guard: str) -> None:
    form = Form(closed.http.get("/admin").text, "key")
    made = closed.http.post("/admin/keys", data=form.with_fields({"name": "nightly-ci", "scope": "read", "days": "7"}))
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    first = KEY.search(made.text)
    assert first is not None and taken(closed, first[1])
    shown = closed.http.get("/admin").text
    assert "nightly-ci" in shown and first[1] not in shown
    (seen,) = [one for one in keys_desk.list_keys(closed.desk, DEFAULT_TENANT) if one.row.name == "nightly-ci"]
    assert (seen.row.scope, seen.state) == ("read", "good") and seen.row.expires_at is not None
    replaced = closed.http.post(f"/admin/keys/{seen.row.id}/rotate", data={"csrf": guard})
    assert replaced.status_code == 200 and replaced.headers["cache-control"] == "no-store"
    second = KEY.search(replaced.text)
    assert second is not None and taken(closed, second[1]) and taken(closed, first[1])
    ended = closed.http.post(f"/admin/keys/{seen.row.id}/revoke", data={"csrf": guard})
    assert ended.headers["location"] == "/admin"
    assert taken(closed, second[1]) and not taken(closed, first[1])
    for deed in ("rotate", "revoke"):
        assert closed.http.post(f"/admin/keys/{seen.row.id}/{deed}", data={"csrf": guard}).status_code == 404
    page = closed.http.get("/admin").text
    assert "revoked" in page
    for action in ("key.create", "key.rotate", "key.revoke"):
        assert action in page


@pytest.mark.parametrize(("field", "value"), [("name", ""), ("name", "x" * 201), ("days", "-1"), ("days", "soon")])
def test_what_is_not_right_stands_at_its_field(closed: Front, guard: str, field: str, value: str) -> None:
    before = len(keys_desk.list_keys(closed.desk, DEFAULT_TENANT))
    answer = closed.http.post("/admin/keys", data={"csrf": guard, "name": "ci", "scope": "read", field: value})
    assert answer.status_code == 422
    around = answer.text.partition(f'id="f-{field}"')[2][:700]
    assert f'value="{value}"' in around and 'aria-invalid="true"' in around
    assert len(keys_desk.list_keys(closed.desk, DEFAULT_TENANT)) == before


def test_a_key_of_another_tenant_is_not_found(closed: Front, guard: str) -> None:
    theirs = new_key(closed, "read", tenant="other", name="their-key")
    assert "their-key" not in closed.http.get("/admin").text
    for deed in ("rotate", "revoke"):
        assert closed.http.post(f"/admin/keys/{theirs.row.id}/{deed}", data={"csrf": guard}).status_code == 404
    assert taken(closed, theirs.text)


def test_nobody_makes_or_ends_a_key_above_their_own(closed: Front) -> None:
    above = new_key(closed, "admin")
    by = Principal(DEFAULT_TENANT, "key_x", "manage")
    with pytest.raises(ScopeMissingError):
        keys_desk.create(closed.desk, by, KeyCreate(name="more", scope="admin"))
    with pytest.raises(ScopeMissingError):
        keys_desk.rotate(closed.desk, by, above.row.id, grace_seconds=0.0)
    with pytest.raises(ScopeMissingError):
        keys_desk.revoke(closed.desk, by, above.row.id)
    assert taken(closed, above.text)
    made = keys_desk.create(closed.desk, by, KeyCreate(name="less", scope="submit"))
    assert taken(closed, made.text)


@pytest.mark.parametrize("scope", ["read", "submit", "manage"])
def test_only_admins_see_and_do_it(closed: Front, scope: Scope) -> None:
    guard = sign_in(closed, scope)
    key = new_key(closed, "read")
    assert "Keys and audit" not in closed.http.get("/jobs").text
    assert closed.http.get("/admin").status_code == 403
    for path in ("keys", f"keys/{key.row.id}/rotate", f"keys/{key.row.id}/revoke", "audit/verify"):
        refused = closed.http.post(f"/admin/{path}", data={"csrf": guard, "name": "ci"})
        assert refused.status_code == 403 and "may not do this" in refused.text, path
    assert taken(closed, key.text)


def test_nothing_is_done_without_the_guard(closed: Front, guard: str) -> None:
    key = new_key(closed, "read")
    for path in ("keys", f"keys/{key.row.id}/rotate", f"keys/{key.row.id}/revoke", "audit/verify"):
        refused = closed.http.post(f"/admin/{path}", data={"name": "ci", "scope": "admin"})
        assert refused.status_code == 403 and "does not come from a page" in refused.text, path
    assert taken(closed, key.text)
    assert len(keys_desk.list_keys(closed.desk, DEFAULT_TENANT)) == 2


def test_quotas_are_shown_with_their_use(closed: Front, guard: str) -> None:
    quotas.set_quota(closed.desk, BY, DEFAULT_TENANT, Quota(stored_bytes=2048, jobs_per_day=4))
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
    own = quotas.get(closed.desk, "other").own
    assert own == {"stored_bytes": 2048, "jobs_per_day": None, "cpu_seconds_per_day": 1.5}
    form = Form(closed.http.get("/admin/quotas/other").text, "quota")
    typed = {name: values[0] for name, values in form.fields.items()}
    assert (typed["stored_bytes"], typed["jobs_per_day"], typed["open_streams"]) == ("2048", "none", "")
    assert closed.http.post("/admin/quotas/other", data=form.with_fields({"jobs_per_day": "7"})).status_code == 303
    assert quotas.get(closed.desk, "other").own == own | {"jobs_per_day": 7}
    assert quotas.get(closed.desk, DEFAULT_TENANT).own == {}


@pytest.mark.parametrize(("field", "value"), [("stored_bytes", "-1"), ("stored_bytes", "much"), ("jobs_queued", "1.5")])
def test_a_limit_that_is_none_stands_at_its_field(closed: Front, guard: str, field: str, value: str) -> None:
    answer = closed.http.post("/admin/quotas/other", data={"csrf": guard, "open_streams": "3", field: value})
    assert answer.status_code == 422
    around = answer.text.partition(f'id="f-{field}"')[2][:700]
    assert f'value="{value}"' in around and 'aria-invalid="true"' in around
    assert 'value="3"' in answer.text.partition('id="f-open_streams"')[2][:100]
    assert quotas.get(closed.desk, "other").own == {}


@pytest.mark.parametrize("scope", ["read", "manage"])
def test_only_admins_set_limits(closed: Front, scope: Scope) -> None:
    guard = sign_in(closed, scope)
    assert closed.http.get("/admin/quotas/other").status_code == 403
    assert closed.http.post("/admin/quotas/other", data={"csrf": guard, "open_streams": "3"}).status_code == 403
    assert quotas.get(closed.desk, "other").own == {}


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
    with closed.desk.database.write() as session:
        session.execute(text("UPDATE audit_events SET actor = 'nobody' WHERE seq = 2"))
    bad = closed.http.post("/admin/audit/verify", data={"csrf": guard})
    assert "The chain is broken" in bad.text and "Row 2 was changed" in bad.text
