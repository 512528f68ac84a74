"""Jobs with hand-overs, and a sender that sends what is due, as a test needs them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlalchemy import select, text, update

from service.db import Database
from service.egress.sending import Egress
from service.hand_overs.asking import HandOverVault
from service.jobs.outcome import QuantizeOutcome
from service.tables import Base, HandOver
from tests.support.front import Front, make_report
from tests.support.webhooks import HOST, PEPPER
from worker.reconcile.hand_overs import HandOverSender

SIGNATURE = "X-Amz-Signature=5ec2e7c0ffee"
TOKEN = "token-of-a-receiver-5ec2e7"
VAULT = HandOverVault(PEPPER)


def put(port: int = 443, artifact: str = "model", **more: Any) -> dict[str, Any]:
    """A target of a PUT, with the signature in its query."""
    return {"kind": "put", "artifact": artifact, "url": f"https://{HOST}:{port}/b/{artifact}?{SIGNATURE}", **more}


def post(port: int = 443, **more: Any) -> dict[str, Any]:
    """A target of a POST, with a token among its headers."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return {"kind": "post", "url": f"https://{HOST}:{port}/in", "headers": headers, **more}


def succeed(front: Front, job_id: str, verdict: str = "none", data: bytes = b"quantized bytes") -> None:
    """Let the job succeed with a model and a report."""
    made = (front.kept("model", "q.onnx", data), front.kept("report", "r.json", b"{}", "application/json"))
    front.finish(job_id, QuantizeOutcome(make_report(verdict), made))


def states(front: Front, job_id: str) -> list[tuple[str, str | None]]:
    """State and reason of each hand-over, over HTTP."""
    items = front.http.get(f"/v1/jobs/{job_id}/hand-over").json()["items"]
    return [(item["state"], item["reason"]) for item in items]


def sender_of(front: Front, egress: Egress, **settings: Any) -> HandOverSender:
    """A sender of its own, by changed settings."""
    app = front.app
    return HandOverSender(app.settings.model_copy(update=settings), app.database, app.store, vault=VAULT, egress=egress)


def carry(front: Front, egress: Egress) -> int:
    """One round of a sender of its own, to the end of all that it begins."""
    with closing(sender_of(front, egress)) as sender:
        return sender.round()


def make_due(database: Database) -> None:
    """Let the pauses of all that is pending be over."""
    with database.write() as session:
        pending = HandOver.state == "pending"
        session.execute(update(HandOver).where(pending).values(next_attempt_at=1.0))


def rows(database: Database) -> list[HandOver]:
    """All hand-overs, in their order."""
    with database.read() as session:
        return list(session.scalars(select(HandOver).order_by(HandOver.id)))


def dump(database: Database) -> str:
    """Every value of every row."""
    with database.read() as session:
        return repr([session.execute(text(f"SELECT * FROM {name}")).all() for name in Base.metadata.tables])
