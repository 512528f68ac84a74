"""Redis as a broker, without trusting the contents of its lists.

kombu takes every message for one that kombu wrote, and Celery most of its fields for what they should be: an exception
on the way ends the worker, and one ``redis-cli lpush cpu "not json"`` would do. Here nothing of a message goes on but
its task and its id, which name a job and an attempt; the rest is written anew.
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from queue import Empty
from typing import Any

from kombu.transport import redis

from service.dispatch.broker import EXCHANGE, TASK_OF_KIND, job_of_task
from service.jobs.queues import QUEUES

log = logging.getLogger(__name__)

TASKS = frozenset(TASK_OF_KIND.values())
# What kombu's reading raises for bytes that are no message: not UTF-8, not JSON, a type tag of its own that it does not
# know or cannot read, or too many brackets.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_SHOWN_CHARS = 200


class Channel(redis.Channel):
    """Takes messages out of lists."""

    def _brpop_read(self, **options: Any) -> Any:
        self.connection.delivering = False
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except _UNREADABLE as error:
            if self.connection.delivering:
                raise  # the message was read: this is a fault in what was done with it
            _log_rejected("(any)", error)
            raise Empty from None


class Transport(redis.Transport):
    """As kombu's, but delivers from queues of jobs only what names a task of ours.

    Attributes:
        delivering: True from the moment that the last message of a job was read.
    """

    Channel = Channel
    delivering = False

    def _deliver(self, message: object, queue: str) -> None:
        if queue not in QUEUES:
            super()._deliver(message, queue)  # type: ignore[no-untyped-call]  # remote control, and events
            return
        self.delivering = True
        clean = clean_message(message, queue)
        if clean is None:
            _log_rejected(queue, message)
        else:
            super()._deliver(clean, queue)  # type: ignore[no-untyped-call]


def clean_message(message: object, queue: str) -> dict[str, Any] | None:
    """The message as our sender writes it, in Celery's second protocol; None if it is none of ours.

    Args:
        message: as the broker holds it.
        queue: that it was found in.
    """
    headers = message.get("headers") if isinstance(message, dict) else None
    if not isinstance(headers, dict):
        return None
    task, task_id = headers.get("task"), headers.get("id")
    named = job_of_task(task_id) if isinstance(task_id, str) else None
    if named is None or not isinstance(task, str) or task not in TASKS:
        return None
    job_id, attempt = named
    body = [[job_id], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": task,
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": attempt - 1,
            "timelimit": _time_limit(headers),
            "argsrepr": repr([job_id]),
            "kwargsrepr": "{}",
            "ignore_result": True,
        },
        "properties": {
            "correlation_id": task_id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": EXCHANGE, "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            # A tag of our own: two messages under one tag would be acknowledged as one.
            "delivery_tag": str(uuid.uuid4()),
        },
    }


def _time_limit(headers: dict[str, Any]) -> list[float | None]:
    """Seconds until the job's deadline, for whoever looks at the task; the supervisor goes by the database."""
    given = headers.get("timelimit")
    hard = given[0] if isinstance(given, list) and given else None
    return [hard if isinstance(hard, int | float) and not isinstance(hard, bool) else None, None]


def _log_rejected(queue: str, reason: object) -> None:
    log.warning("broker.message_rejected queue=%s: no message of ours: %s", queue, repr(str(reason))[:_SHOWN_CHARS])
