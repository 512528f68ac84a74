"""What receivers verify requests by: against the reference library, and against whoever forges them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from quantmill import webhooks
from quantmill.webhooks import WebhookNotVerifiedError, verify
from service.contracts.webhooks import signature
from service.webhooks.service import make_secret

NOW = 1_800_000_000
SECRET, OTHER = make_secret(), make_secret()
EVENT = {"type": "job.succeeded", "timestamp": "2027-01-15T08:00:00.000Z", "schema_version": 1, "data": {"id": "jöb"}}
BODY = json.dumps(EVENT, ensure_ascii=False).encode()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks.time, "time", lambda: float(NOW))


def headers(*secrets: str, at: int = NOW, body: bytes = BODY, **changes: str) -> dict[str, str]:
    signatures = " ".join(signature(secret, "evt_1", at, body) for secret in secrets)
    found = {"Webhook-Id": "evt_1", "Webhook-Timestamp": str(at), "Webhook-Signature": signatures}
    return {**found, **changes}


def test_one_of_several_secrets_fits(still: None) -> None:
    pairs = (([SECRET], SECRET), ([SECRET, OTHER], OTHER), ([SECRET], [OTHER, SECRET]), ([OTHER, SECRET], [SECRET]))
    for sent, known in pairs:
        assert verify(BODY, headers(*sent), known) == EVENT


@given(body=st.dictionaries(st.text(), st.text()).map(lambda found: json.dumps(found).encode()))
def test_the_reference_library_takes_what_we_sign_and_we_take_what_it_signs(body: bytes) -> None:
    at = int(datetime.now(UTC).timestamp())
    assert Webhook(SECRET).verify(body, headers(OTHER, SECRET, at=at, body=body)) == json.loads(body)
    theirs = Webhook(SECRET).sign("evt_1", datetime.fromtimestamp(at, UTC), body.decode())
    assert verify(body, headers(at=at, **{"Webhook-Signature": theirs}), SECRET) == json.loads(body)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(body, headers(SECRET, at=at, body=body))


def test_a_header_that_is_another_or_missing(still: None) -> None:
    ours = signature(SECRET, "evt_1", NOW, BODY)
    times = (str(NOW + 1), f"0{NOW}", "soon", "9" * 5000)
    signatures = ("", "v1", "\u00e9 v1,\u00e9", ours.replace("v1,", "v2,"), ours.removeprefix("v1,"))
    changes = [
        *({"Webhook-Id": name} for name in ("evt_2", "")),
        *({"Webhook-Timestamp": at} for at in times),
        *({"Webhook-Signature": told} for told in signatures),
    ]
    fine = headers(SECRET)
    missing = [{name: value for name, value in fine.items() if name != left_out} for left_out in fine]
    for sent in (*(headers(SECRET, **changed) for changed in changes), *missing):
        with pytest.raises(WebhookNotVerifiedError) as caught:
            verify(BODY, sent, SECRET)
        assert (caught.value.code, caught.value.status) == ("webhook-not-verified", 400)
        assert all(name.lower() in caught.value.detail for name in fine.keys() - sent.keys())


def test_another_body_or_secret_and_a_body_that_is_no_event(still: None) -> None:
    for sent, body, secret in (
        (BODY, BODY + b" ", SECRET),
        (BODY, BODY, OTHER),
        (BODY, b"", SECRET),
        *((body, body, SECRET) for body in (b"[]", b"{", b"\xff")),
    ):
        with pytest.raises(WebhookNotVerifiedError):
            verify(body, headers(SECRET, body=sent), secret)


def test_an_old_request_sent_again(still: None) -> None:
    for age in (-301, 301, 86400):
        sent = headers(SECRET, at=NOW - age)
        with pytest.raises(WebhookNotVerifiedError):
            verify(BODY, sent, SECRET)
        assert verify(BODY, sent, SECRET, tolerance_seconds=abs(age)) == EVENT


def test_a_secret_that_is_none(still: None) -> None:
    for secret in ("", "whsec_", "whsec_!!", "whsec_" + base64.b64encode(b"short").decode(), []):
        with pytest.raises(ValueError, match="secret"):
            verify(BODY, headers(SECRET), secret)
