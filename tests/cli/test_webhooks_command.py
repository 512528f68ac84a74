"""``quantmill webhooks``: from the first to the last word of a webhook's life."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import KEY
from tests.worker.running import Service
from tests.worker.workbench import wait_for

URL = "https://hooks.invalid/in"


@pytest.fixture
def webhooks(quantmill, service: Service):
    """Runs ``quantmill webhooks ARGUMENTS`` on the service; gives what it printed."""

    def run(*arguments: str, code: int = 0) -> str:
        done = quantmill("webhooks", *arguments, "--server", service.url, "--key", KEY)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def test_a_webhooks_life(webhooks) -> None:
    def told(*arguments: str) -> Any:
        return json.loads(webhooks(*arguments, "--json"))

    secret = webhooks("create", URL, "--event", "job.*", "--event", "model.ready", "--description", "CI").strip()
    assert secret.startswith("whsec_")
    assert len(secret.split()) == 1, "the secret alone, for $(...)"
    (made,) = [item for item in told("list")["items"] if item["description"] == "CI"]
    hook = made["id"]
    assert (made["event_types"], made["url"]) == (["job.*", "model.ready"], URL)
    assert hook in webhooks("list")
    assert secret not in webhooks("show", hook)
    assert told("show", hook) == made
    rotated = told("rotate", hook, "--grace-hours", "1")
    assert rotated["secret"] != secret
    assert "previous secret ends at" in webhooks("show", hook)
    ping = told("ping", hook)
    assert ping["type"] == "webhook.ping"
    sent = wait_for(
        lambda: [item for item in told("deliveries", hook)["items"] if item["last_error"]], message="nothing was sent"
    )
    assert (sent[0]["id"], sent[0]["state"], sent[0]["last_error"]) == (ping["id"], "waiting", "host-unresolved")
    assert "host-unresolved" in webhooks("deliveries", hook, "--state", "waiting")
    assert "no delivery" in webhooks("deliveries", hook, "--state", "delivered")
    assert told("redeliver", hook, ping["id"])["event_id"] == ping["event_id"]
    assert told("rm", hook) == {"id": hook, "deleted": True}
    assert hook in webhooks("show", hook, code=1)


def test_what_is_refused_says_what_to_do(webhooks) -> None:
    said = webhooks("create", "https://127.0.0.1/", code=1)
    assert "QUANTMILL_EGRESS_ALLOWED" in said
    assert "job.succeeded" in webhooks("create", URL, "--event", "job.done", code=1)
