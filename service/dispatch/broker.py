"""The broker: its settings, shared by senders and workers, and how a released job is sent to it."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.utils.url import parse_url
from sqlalchemy.orm import Session

from service import tracing
from service.dispatch.release import Released
from service.dispatch.repository import of_workers
from service.dispatch.slots import FreeSlots
from service.ids import is_id
from service.jobs.errors import DispatchError
from service.jobs.queues import QUEUES
from service.monitoring.declarations import PUBLISHES
from service.settings import Settings

if TYPE_CHECKING:
    from redis import Redis

# The task of each kind of job.
TASK_OF_KIND = {
    "quantize": "quantize",
    "evaluate": "evaluate",
    "inspect_model": "inspect",
    "inspect_dataset": "inspect",
    "inspect_target": "inspect",
}
EXCHANGE = "quantmill"
_SOCKET_SECONDS = 5.0
_REDIS_PORT = 6379
# More than any attempt has.
_DIGITS = 10


def task_id(job_id: str, attempt: int) -> str:
    """The id of the message for one attempt of a job."""
    return f"{job_id}.{attempt}"


def job_of_task(name: str) -> tuple[str, int] | None:
    """The job and the attempt that a task's id names; None: it is no id of ours."""
    job_id, _, attempt = name.rpartition(".")
    return (job_id, int(attempt)) if is_id(job_id, "job") and attempt.isdecimal() and len(attempt) < _DIGITS else None


def on_redis(settings: Settings) -> bool:
    """True if the broker is a Redis."""
    return settings.broker_url.startswith(("redis://", "rediss://"))


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Celery configuration that senders and workers share: JSON only, no results, no delays in the broker.

    Messages are acknowledged as they are taken: what a worker takes along to its grave is sent again, by the database's
    word. With Redis none is taken before a slot is free; other brokers know that only of messages that are acknowledged
    late.
    """
    is_redis = on_redis(settings)
    return {
        "broker_url": settings.broker_url,
        "broker_use_ssl": broker_tls(settings.broker_url),
        "broker_transport_options": {
            "socket_connect_timeout": _SOCKET_SECONDS,
            "socket_timeout": _SOCKET_SECONDS,
            "health_check_interval": 25,
        },
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_heartbeat": 25,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_queues": {
            name: {"exchange": EXCHANGE, "exchange_type": "direct", "routing_key": name} for name in QUEUES
        },
        "task_default_queue": QUEUES[0],
        "task_default_exchange": EXCHANGE,
        "task_default_routing_key": QUEUES[0],
        "task_create_missing_queues": False,
        "task_publish_retry": False,
        "task_acks_late": not is_redis,
        "task_reject_on_worker_lost": False,
        "task_track_started": True,
        "worker_disable_prefetch": is_redis,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": True,
        "worker_enable_remote_control": True,
    }


def broker_tls(url: str) -> dict[str, Any] | None:
    """How TLS with the broker is done; None without TLS.

    By itself kombu takes any certificate for ``rediss://``. Parameters of the URL (``ssl_ca_certs``, ``ssl_certfile``,
    ``ssl_keyfile``, ``ssl_cert_reqs``, ``ssl_check_hostname``) add to this, or change it.
    """
    if not url.startswith("rediss://"):
        return None
    given = parse_url(url).get("ssl", {})
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True, **given}


def redis_client(settings: Settings, seconds: float) -> Redis:
    """A plain client of the broker's Redis, which tries once.

    Args:
        settings: name it; see ``on_redis``.
        seconds: that it has to accept a connection, and again for each answer.
    """
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    url = parse_url(settings.broker_url)
    tls = broker_tls(settings.broker_url)
    return Redis(
        host=url["hostname"] or "localhost",
        port=url["port"] or _REDIS_PORT,
        db=int(url["virtual_host"] or 0),
        username=url["userid"],
        password=url["password"],
        socket_connect_timeout=seconds,
        socket_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        ssl=tls is not None,
        **(tls or {}),
    )


def _sender_settings(settings: Settings) -> dict[str, Any]:
    """As the worker's, but a sender gives up at once: what is not sent now is sent later."""
    shared, seconds = celery_settings(settings), settings.publish_seconds
    options: dict[str, Any] = {"max_retries": 0, "interval_start": 0, "interval_max": 0}
    options |= {"socket_connect_timeout": seconds, "socket_timeout": seconds}
    return {**shared, "broker_transport_options": shared["broker_transport_options"] | options}


class TaskSender:
    """Sends released jobs to the broker; a call lasts about as long as the broker is given, at most.

    Args:
        settings: names the broker and the time.
    """

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.publish_seconds
        self._app = Celery("quantmill-sender", set_as_current=False)
        self._app.conf.update(_sender_settings(settings))

    def send(self, job: Released) -> None:
        """Send the message of one attempt.

        Raises:
            DispatchError: the broker refused it or did not answer in time. The message may arrive all the same.
        """
        begun, result = time.perf_counter(), "failed"
        try:
            self._app.send_task(
                TASK_OF_KIND[job.kind],
                args=[job.id],
                task_id=task_id(job.id, job.attempt),
                queue=job.queue,
                retries=job.attempt - 1,
                time_limit=job.seconds_left,
                headers=tracing.carrier(),
                retry=False,
                ignore_result=True,
            )
            result = "sent"
        except Exception as error:
            # Transports raise their own library's errors as well as kombu's; all mean that the message was not taken.
            raise _away(error) from error
        finally:
            PUBLISHES.labels(result).observe(time.perf_counter() - begun)

    def free(self, session: Session) -> FreeSlots:
        """Slots of all workers that are alive."""
        return of_workers(session)

    def ping(self) -> None:
        """Connect to the broker.

        Raises:
            DispatchError: it cannot be reached.
        """
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=self._seconds)
        except Exception as error:
            raise _away(error) from error

    def close(self) -> None:
        """Let go of connections."""
        self._app.close()


def _away(error: Exception) -> DispatchError:
    return DispatchError(
        f"The broker did not accept the message: {type(error).__name__}: {error}",
        hint="The job stays queued and the message is sent again. Check QUANTMILL_BROKER_URL and the broker.",
    )
