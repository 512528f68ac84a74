"""Messages to the workers. A message is a hint that carries only the job id: the job's row is what counts."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from celery import Celery
from kombu.utils.url import parse_url

from service.jobs.errors import DispatchError
from service.jobs.queues import QUEUES
from service.settings import Settings

TASK_NAME = "run_job"
EXCHANGE = "quantmill"
_SOCKET_SECONDS = 5.0
_THREADS = 4
# Between two looks into the folder of the filesystem broker; one look takes some tens of microseconds.
_POLL_SECONDS = 0.05


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Celery configuration that the senders and the worker share: JSON only, no results, no delays in the broker."""
    return {
        "broker_url": "filesystem://" if settings.embedded_broker else settings.broker_url,
        "broker_use_ssl": broker_tls(settings.broker_url),
        **({"broker_transport": "service.jobs.letterbox:Transport"} if settings.embedded_broker else {}),
        "broker_transport_options": _transport_options(settings),
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
        "task_acks_late": True,
        "task_reject_on_worker_lost": False,
        "task_track_started": False,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_soft_shutdown_timeout": 30,
        "worker_enable_remote_control": False,
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


def _transport_options(settings: Settings) -> dict[str, Any]:
    if settings.embedded_broker:
        return {
            "data_folder_in": str(settings.broker_dir / "queue"),
            "data_folder_out": str(settings.broker_dir / "queue"),
            "processed_folder": str(settings.broker_dir / "processed"),
            "control_folder": str(settings.broker_dir / "control"),
            "polling_interval": _POLL_SECONDS,
        }
    return {
        # longer than any job: redelivery of a live job would only be refused by its claim
        "visibility_timeout": settings.job_deadline_seconds + 3600,
        "unacked_restore_throttle": 1,
        "socket_connect_timeout": _SOCKET_SECONDS,
        "socket_timeout": _SOCKET_SECONDS,
        "health_check_interval": 25,
    }


def _sender_settings(settings: Settings) -> dict[str, Any]:
    """As the worker's, but a sender gives up at once: its caller waits, and what is not sent now is sent later."""
    shared = celery_settings(settings)
    options = {**shared["broker_transport_options"], "max_retries": 0, "interval_start": 0, "interval_max": 0}
    if not settings.embedded_broker:
        options |= {"socket_connect_timeout": settings.publish_seconds, "socket_timeout": settings.publish_seconds}
    return {**shared, "broker_transport_options": options}


class Dispatcher:
    """Sends "run this job" to the broker, within a fixed time.

    Args:
        settings: names the broker and the time.
    """

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.publish_seconds
        self._app = Celery("quantmill-sender", set_as_current=False)
        self._app.conf.update(_sender_settings(settings))
        # Own threads: a broker that swallows packets holds one of them, never the caller.
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="dispatch")
        self._lock = threading.Lock()
        self._waiting = 0

    def publish(self, job_id: str, queue: str) -> None:
        """Send one message.

        Raises:
            DispatchError: the broker refused it or did not answer in time. The message may arrive all the same.
        """
        self._within_time(self._send, job_id, queue)

    def ping(self) -> None:
        """Connect to the broker.

        Raises:
            DispatchError: it cannot be reached.
        """
        self._within_time(self._connect)

    def close(self) -> None:
        """Let go of connections and threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._app.close()

    def _send(self, job_id: str, queue: str) -> None:
        self._app.send_task(TASK_NAME, args=[job_id], queue=queue, retry=False, ignore_result=True)

    def _connect(self) -> None:
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=self._seconds)

    def _release(self, _: Future[None]) -> None:
        with self._lock:
            self._waiting -= 1

    def _within_time(self, action: Callable[..., None], *arguments: str) -> None:
        with self._lock:
            if self._waiting >= _THREADS:
                raise self._error("earlier messages are still waiting for it")
            self._waiting += 1
        try:
            future = self._threads.submit(action, *arguments)
        except RuntimeError as error:  # this process may have no more threads, or is closing
            with self._lock:
                self._waiting -= 1
            raise self._error(str(error)) from error
        future.add_done_callback(self._release)
        try:
            future.result(timeout=self._seconds)
        except TimeoutError:
            raise self._error(f"it did not answer within {self._seconds} s") from None
        except Exception as error:
            # Transports raise their own library's errors as well as kombu's; all mean that the message was not taken.
            raise self._error(f"{type(error).__name__}: {error}") from error

    @staticmethod
    def _error(reason: str) -> DispatchError:
        return DispatchError(
            f"The broker did not take the message: {reason}",
            hint="Nothing is lost: the job stays queued and is sent again. Check QUANTMILL_BROKER_URL and the broker.",
        )
