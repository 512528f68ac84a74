"""The Redis broker, without trust in what its lists hold."""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from kombu.transport import redis, virtual

from worker.transport.messages import UNREADABLE, ForeignMessageError, clean_message, log_rejected, named_job

log = logging.getLogger(__name__)


class QoS(redis.QoS):
    """Lets go of a message also while the broker is away.

    A message that could not be acknowledged would count as one in hand for ever, and a worker takes no other beside
    it: it would live on and do nothing. A broker that still has the message sends it again, and its claim is refused.
    """

    def ack(self, delivery_tag: str) -> None:
        """Have the broker forget a message."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except self.channel.connection.connection_errors as error:
            self._forget(delivery_tag, error)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or have the broker forget it."""
        try:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]
        except self.channel.connection.connection_errors as error:
            self._forget(delivery_tag, error)

    def _forget(self, delivery_tag: str, error: Exception) -> None:
        log.warning("broker.away message=%s: %s", delivery_tag, error)
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]


class Channel(redis.Channel):
    """Takes messages out of lists."""

    QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        self.connection.delivering = False
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except UNREADABLE as error:
            if self.connection.delivering:
                raise  # the message was read: this is a fault in what was done with it
            log_rejected("(any)", error)
            raise Empty from None


class Transport(redis.Transport):
    """As kombu's, but delivers only what names a job.

    Attributes:
        delivering: True from the moment that the last message was read.
    """

    Channel = Channel
    delivering = False

    def _deliver(self, message: object, queue: str) -> None:
        self.delivering = True
        try:
            job_id = named_job(message)
        except ForeignMessageError as error:
            log_rejected(queue, error)
            return
        super()._deliver(clean_message(job_id, queue), queue)  # type: ignore[no-untyped-call]
