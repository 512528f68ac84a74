"""The Redis broker, without trust in what its lists hold."""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import redis

from worker.transport.messages import UNREADABLE, ForeignMessageError, clean_message, log_rejected, named_job


class Channel(redis.Channel):
    """Takes messages out of lists."""

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
