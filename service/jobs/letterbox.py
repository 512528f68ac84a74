"""The filesystem broker as senders need it: a message is a file that is there as a whole or not at all.

kombu opens the file in its place and writes afterwards; who takes it in between reads nothing, and the message is gone.
Its table of exchanges has the same gap, and two processes that start at once overwrite each other's rows.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem

from service.jobs.queues import QUEUES


class Channel(filesystem.Channel):
    """Puts messages into files."""

    def get_table(self, exchange: str) -> list[Any]:
        """The queues of the one exchange are known: each has the name of its routing key."""
        return [filesystem.exchange_queue_t(name, "", name) for name in QUEUES]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Nothing is to be noted, see ``get_table``."""

    def _put(self, queue: str, payload: object, **_: object) -> None:  # type: ignore[override]
        """Add ``payload`` to ``queue``.

        Raises:
            ChannelError: the disk refused.
        """
        # kombu takes files by the order of their names, and only those with this very ending.
        name = f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg"
        folder = Path(self.data_folder_out)
        written = folder / f"{name}.part"
        try:
            written.write_text(json.dumps(payload))
            written.rename(folder / name)
        except OSError as error:
            raise ChannelError(f"Cannot add file {name!r} to {folder}: {error}") from error


class Transport(filesystem.Transport):
    """As kombu's, with messages that are whole."""

    Channel = Channel
