"""Reads a message with care. Nothing of it but the job id goes on: what Celery sees is written anew."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from service.ids import is_id
from service.jobs.dispatch import EXCHANGE, TASK_NAME

log = logging.getLogger(__name__)

# What kombu's reading raises for bytes that are no message: not UTF-8, not JSON, a type tag of its own that it does not
# know or cannot read, or too many brackets.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_SHOWN_CHARS = 200


class ForeignMessageError(ValueError):
    """The message is not one that a sender of ours wrote."""


def _job_id(value: str) -> str:
    if not is_id(value, "job"):
        raise ValueError("this is no job id")
    return value


class _Headers(BaseModel):
    task: Literal["run_job"]


class _Properties(BaseModel):
    body_encoding: Literal["base64"]


class _Envelope(BaseModel):
    body: str
    content_type: Literal["application/json"] = Field(alias="content-type")
    headers: _Headers
    properties: _Properties


_ARGUMENTS = TypeAdapter(tuple[tuple[Annotated[str, AfterValidator(_job_id)]], dict[str, Any], dict[str, Any]])


def named_job(message: object) -> str:
    """The job id in a message as the broker holds it.

    Raises:
        ForeignMessageError: it does not have the shape that ``Dispatcher`` gives to a message.
    """
    try:
        envelope = _Envelope.model_validate(message)
        arguments = _ARGUMENTS.validate_json(base64.b64decode(envelope.body, validate=True))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = "/".join(map(str, first["loc"])) or "the whole"
        raise ForeignMessageError(f"{place}: {first['msg']}") from None
    except ValueError as error:
        raise ForeignMessageError(f"body: {error}") from None
    return arguments[0][0]


def clean_message(job_id: str, queue: str) -> dict[str, Any]:
    """A message in Celery's second protocol that says "run this job" and nothing else."""
    task_id = str(uuid.uuid4())
    body = [[job_id], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": TASK_NAME,
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": repr((job_id,)),
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


def log_rejected(queue: str, reason: object) -> None:
    """The one line about a message that is thrown away."""
    log.warning("broker.message_rejected queue=%s: no message of ours: %s", queue, repr(str(reason))[:_SHOWN_CHARS])
