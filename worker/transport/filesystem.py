"""The filesystem broker, without trust in what its files hold."""

from __future__ import annotations

from typing import Any

from kombu.transport import filesystem

from worker.transport.messages import UNREADABLE, ForeignMessageError, clean_message, log_rejected, named_job


class Channel(filesystem.Channel):
    """Takes messages out of files."""

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        while True:
            try:
                return super()._get(queue)  # type: ignore[no-untyped-call]
            except UNREADABLE as error:
                log_rejected(queue, error)  # its file is gone: the next one


class Transport(filesystem.Transport):
    """As kombu's, but delivers only what names a job."""

    Channel = Channel

    def _deliver(self, message: object, queue: str) -> None:
        try:
            job_id = named_job(message)
        except ForeignMessageError as error:
            log_rejected(queue, error)
            return
        super()._deliver(clean_message(job_id, queue), queue)  # type: ignore[no-untyped-call]
