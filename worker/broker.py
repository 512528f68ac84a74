"""How many messages wait in the broker."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.exceptions import ChannelError, OperationalError

from service.jobs.dispatch import celery_settings
from service.jobs.errors import DispatchError
from service.settings import Settings

# kombu gives the code of its virtual transports as text, AMQP servers give a number.
_NOT_FOUND = "404"


class QueueDepths:
    """Counts waiting messages.

    Args:
        settings: names the broker.
    """

    def __init__(self, settings: Settings) -> None:
        self._app = Celery("quantmill-depths", set_as_current=False)
        self._app.conf.update(celery_settings(settings))

    def waiting(self, queue: str) -> int:
        """Messages in ``queue`` that no worker has taken.

        Raises:
            DispatchError: the broker cannot be reached.
        """
        try:
            with self._app.pool.acquire(block=True, timeout=1) as connection:
                return self._count(connection, queue)
        except ChannelError as error:
            if str(error.reply_code) == _NOT_FOUND:
                return 0  # nothing was sent, or everything was taken
            raise self._away(error) from error
        except (OperationalError, OSError) as error:
            raise self._away(error) from error

    def _count(self, connection: Any, queue: str) -> int:
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except connection.connection_errors as error:  # of the transport's own library
            raise self._away(error) from error

    @staticmethod
    def _away(error: Exception) -> DispatchError:
        return DispatchError(
            f"The broker did not say how many messages wait: {error}",
            hint="Check QUANTMILL_BROKER_URL and the broker.",
        )
