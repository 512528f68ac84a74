"""The whole service on one host: API, workers and reconciler as child processes.

The listening socket belongs to this process and outlives the API child: while a dead API is restarted, connections wait
instead of being refused.
"""

from __future__ import annotations

import errno
import fcntl
import http.client
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from sqlalchemy.exc import SQLAlchemyError

from service.contracts.command_errors import AddressError, DataDirInUseError, StartError
from service.contracts.errors import QuantmillError
from service.db import migrate
from service.keys.files import LOCAL_KEY_FILE
from service.process import is_loopback
from service.settings import Settings
from worker.children import Child, ChildKeeper, command_line
from worker.memory import inspection_slots

log = logging.getLogger(__name__)

READY_SECONDS = 60.0
STOP_SECONDS = 25.0
TICK_SECONDS = 0.1
BACKLOG = 1024
METRICS_PORT = "QUANTMILL_METRICS_PORT"
LOCK_FILE = "up.lock"


def banner(settings: Settings, url: str) -> str:
    """What a service that is ready tells of itself: where it is, and who may use it."""
    line = f"Quantmill is ready: {url}  (dashboard; the API: {url}/docs)"
    if settings.keyless:
        return f"{line}\nWARNING: no key is required: everybody on this machine can use the service."
    if settings.api_key is None and is_loopback(settings.host):
        key_file = settings.data_dir / LOCAL_KEY_FILE
        return f"{line}\nKey: {key_file}  (commands of the same user find it automatically)"
    return line


class StopFlag:
    """Set by SIGINT and SIGTERM."""

    def __init__(self) -> None:
        self._set = False

    def install(self) -> None:
        """Take over SIGINT and SIGTERM."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def __call__(self) -> bool:
        """True once a stop was asked for."""
        return self._set

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._set = True


class EmbeddedService:
    """API, reconciler, a worker for jobs and one for validation. Use from the main thread: children are bound to it.

    Args:
        settings: where to listen and where to keep things.
        output: descriptor that takes what the children print; None: standard error.
    """

    def __init__(self, settings: Settings, *, output: int | None = None) -> None:
        self._settings = settings
        settings.make_folders()
        self._lock = lock_data_dir(settings.data_dir)
        try:
            self._socket = listen(settings.host, settings.port)
        except QuantmillError:
            self._lock.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        descriptor = self._socket.fileno()
        inspections = str(inspection_slots(settings))
        children = (
            Child("api", command_line("api", "--fd", str(descriptor)), pass_fds=(descriptor,)),
            Child("reconciler", command_line("reconcile")),
            Child("worker", command_line("worker", "--queues", "cpu")),
            # Slots of their own: an upload is validated within seconds also while a job runs for hours.
            Child("inspector", command_line("worker", "--queues", "inspect", "--slots", inspections)),
        )
        for number, child in enumerate(children):
            child.variables = {METRICS_PORT: str(settings.metrics_port and settings.metrics_port + number)}
        self._keeper = ChildKeeper(
            children,
            variables={
                # two worker processes on one machine share its memory; all inspections together count as one job
                "QUANTMILL_HOST_SLOTS": str(max(settings.host_slots, settings.worker_slots + 1)),
                "QUANTMILL_DATA_DIR": str(settings.data_dir),
                "QUANTMILL_HOST": settings.host,
                "QUANTMILL_OPEN": str(settings.open),
                "QUANTMILL_PORT": str(self.port),
            },
            output=output,
        )

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://{_reachable(self._settings.host)}:{self.port}"

    def run(self, stopping: Callable[[], bool], on_ready: Callable[[str], None]) -> None:
        """Migrate, start everything, call ``on_ready(url)`` once, and keep all alive until ``stopping``.

        Raises:
            StartError: the database is away, a child died before the service was ready, or it took too long.
        """
        try:
            migrate(self._settings.database_url)
        except SQLAlchemyError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise StartError(
                f"The database cannot be migrated: {reason}", hint="Check QUANTMILL_DATABASE_URL."
            ) from error
        self._keeper.start()
        until = time.monotonic() + READY_SECONDS
        ready = False
        while not stopping():
            died = self._keeper.watch()
            if not ready:
                ready = self._became_ready(died, until)
                if ready:
                    on_ready(self.url)
            time.sleep(TICK_SECONDS)

    def _became_ready(self, died: Sequence[Child], until: float) -> bool:
        if died:
            raise StartError(
                f"The {died[0].name} ended with exit code {died[0].exit_codes[-1]} before the service was ready.",
                hint="See its output above.",
            )
        if time.monotonic() > until:
            raise StartError(
                f"The service was not ready within {READY_SECONDS:.0f} s.", hint=f"Check {self.url}/readyz."
            )
        return is_ready(self._settings.host, self.port)

    def close(self) -> None:
        """Stop everything; no process is left when this returns."""
        self._keeper.stop(STOP_SECONDS)
        self._socket.close()
        self._lock.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        AddressError: the address is taken, not ours, or forbidden.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        hint = "Choose another port with --port; --port 0 takes any free one."
        if error.errno == errno.EADDRINUSE:
            raise AddressError(f"Port {port} on {host} is already in use by another process.", hint=hint) from None
        raise AddressError(f"Cannot listen on {host} port {port}: {error.strerror}.", hint=hint) from None
    return listener


def is_ready(host: str, port: int) -> bool:
    """True if the API says that it can serve."""
    connection = http.client.HTTPConnection(_reachable(host).strip("[]"), port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _reachable(host: str) -> str:
    """The address under which a listener on ``host`` is reached from here, as it stands in a URL."""
    if host in {"0.0.0.0", ""}:  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def lock_data_dir(data_dir: Path) -> IO[str]:
    """Take the data directory for this process, until the stream is closed.

    Raises:
        DataDirInUseError: another process has it.
    """
    stream = (data_dir / LOCK_FILE).open("a+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.seek(0)
        owner = stream.read().strip()
        stream.close()
        raise DataDirInUseError(
            f"Another service (process {owner or 'unknown'}) is using {data_dir}.",
            hint="Stop it, or use another folder with --data-dir.",
        ) from None
    stream.truncate(0)
    stream.write(f"{os.getpid()}\n")
    stream.flush()
    return stream
