"""The filesystem broker, without trust in what its files hold."""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from service.jobs import letterbox
from worker.transport.messages import UNREADABLE, ForeignMessageError, clean_message, log_rejected, named_job

log = logging.getLogger(__name__)


class Channel(letterbox.Channel):
    """Takes messages out of files. A folder that is not there, or cannot be read, holds none: it may come back."""

    _away = False

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        while True:
            try:
                message = super()._get(queue)  # type: ignore[no-untyped-call]
            except UNREADABLE as error:
                log_rejected(queue, error)  # its file is gone: the next one
            except OSError as error:
                if not self._away:  # told once, not at each of twenty looks a second
                    log.warning("broker.away queue=%s: %s", queue, error)
                    self._away = True
                raise Empty from error
            except Empty:
                self._back()
                raise
            else:
                self._back()
                return message

    def _back(self) -> None:
        if self._away:
            log.info("broker.back")
            self._away = False


class Transport(letterbox.Transport):
    """As kombu's, but delivers only what names a job."""

    Channel = Channel

    def _deliver(self, message: object, queue: str) -> None:
        try:
            job_id = named_job(message)
        except ForeignMessageError as error:
            log_rejected(queue, error)
            return
        super()._deliver(clean_message(job_id, queue), queue)  # type: ignore[no-untyped-call]
