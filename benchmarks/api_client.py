"""Clients of the API, each a process of its own: they measure, load it, or keep streams and polls open.

    python -m benchmarks.api_client measure|load|wait < wanted.json

``measure`` sends requests at a fixed rate, ``load`` each as soon as the one before was answered; both print
milliseconds as JSON, by kind of request or of all. ``wait`` prints a line once everybody waits, and at the end
of its standard input how many events came and how many waiters were turned away.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

# Requests of one kind that may be on their way at once: none waits for an answer that takes long.
_AT_ONCE = 16
_TIMEOUT_SECONDS = 60.0
# Long polls come back at times of their own, as clients that came at different times do.
_POLL_SECONDS = (10.0, 30.0)
_LOOK_AGAIN_SECONDS = 3600.0


class Lane:
    """Sends one kind of request at a fixed rate.

    Args:
        port: of the API on this host.
        period_seconds: between two requests.
        method: of the request.
        paths: in turn.
        body: None: none.
    """

    def __init__(self, port: int, period_seconds: float, method: str, paths: Sequence[str], body: Any = None) -> None:
        self._port, self._period_seconds = port, period_seconds
        self._method, self._paths = method, paths
        self._body = None if body is None else json.dumps(body)
        self._local = threading.local()

    def run(self, count: int) -> list[float]:
        """Milliseconds of so many requests; a request that the service refuses ends it all."""
        begun, answers = time.perf_counter(), []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, path in enumerate(islice(cycle(self._paths), count)):
                time.sleep(max(0.0, begun + number * self._period_seconds - time.perf_counter()))
                answers.append(pool.submit(self._send, path))
        return [answer.result() for answer in answers]

    def _send(self, path: str) -> float:
        connection = getattr(self._local, "connection", None)
        if connection is None or time.perf_counter() - self._local.used_at > 1.0:  # the service closes idle ones
            if connection is not None:
                connection.close()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
            connection.connect()
            self._local.connection = connection
        headers = {} if self._body is None else {"Content-Type": "application/json"}
        begun = time.perf_counter()
        connection.request(self._method, path, self._body, headers)
        answer = connection.getresponse()
        said = answer.read()
        taken = time.perf_counter() - begun
        self._local.used_at = time.perf_counter()
        if answer.status >= 300:
            raise RuntimeError(f"{self._method} {path}: {answer.status} {said[:500]!r}")
        return taken * 1000


def measure(wanted: dict[str, Any]) -> dict[str, list[float]]:
    """Milliseconds by kind of request; all kinds are sent side by side, and the first ``warmup`` do not count."""
    period = 1.0 / wanted["rate"]
    lanes = {
        name: Lane(wanted["port"], period, lane["method"], lane["paths"], lane.get("body"))
        for name, lane in wanted["lanes"].items()
    }
    count = wanted["warmup"] + wanted["requests"]
    with ThreadPoolExecutor(len(lanes)) as pool:
        running = {name: pool.submit(lane.run, count) for name, lane in lanes.items()}
        return {name: taken.result()[wanted["warmup"] :] for name, taken in running.items()}


def load(wanted: dict[str, Any]) -> list[float]:
    """Milliseconds of each request of some connections that send one after the other for some seconds."""
    ends = time.perf_counter() + wanted["seconds"]
    body = None if wanted["body"] is None else json.dumps(wanted["body"])
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {wanted['key']}"}

    def run(number: int) -> list[float]:
        port, path = (wanted[name][number % len(wanted[name])] for name in ("ports", "paths"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
        taken = []
        while (begun := time.perf_counter()) < ends:
            connection.request(wanted["method"], path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
            taken.append((time.perf_counter() - begun) * 1000)
            if answer.status >= 300:
                raise RuntimeError(f"{wanted['method']} {path}: {answer.status} {said[:500]!r}")
        return taken

    with ThreadPoolExecutor(wanted["connections"]) as pool:
        return [one for taken in pool.map(run, range(wanted["connections"])) for one in taken]


class Crowd:
    """Event streams and long polls, each on a connection of its own, that come back whenever they are answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.open, self.events, self.refused = 0, 0, 0

    async def follow(self, path: str) -> None:
        """Follow the log of a job."""
        await self._again(lambda: _request(path, "Accept: text/event-stream"), answered_at_once=True)

    async def poll(self, path: str) -> None:
        """Wait for the end of a job."""
        await self._again(lambda: _request(f"{path}?wait={random.uniform(*_POLL_SECONDS)}", "Connection: close"))

    async def _again(self, request: Callable[[], str], *, answered_at_once: bool = False) -> None:
        first = True
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request().encode())
            self.open += first and not answered_at_once
            head = b""
            while chunk := await reader.read(65_536):
                self.open += first and answered_at_once and not head
                head = head or chunk
                self.events += chunk.count(b"\nevent: ") + chunk.startswith(b"event: ")
                if b"event: end\n" in chunk:
                    break
            writer.close()
            first = False
            if not head.startswith(b"HTTP/1.1 200"):
                self.refused += 1
                await asyncio.sleep(0.5)
            elif b"text/event-stream" in head:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)  # its job has ended: nothing more comes


async def wait(wanted: dict[str, Any]) -> None:
    """Keep everybody waiting until standard input ends."""
    crowd = Crowd(wanted["port"])
    tasks = [asyncio.create_task(crowd.follow(path)) for path in wanted["streams"]]
    tasks += [asyncio.create_task(crowd.poll(path)) for path in wanted["polls"]]
    while crowd.open < len(tasks):
        await asyncio.sleep(0.05)
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [repr(end) for end in ended if not isinstance(end, asyncio.CancelledError)]
    print(json.dumps({"events": crowd.events, "refused": crowd.refused, "broken": broken[:5]}), flush=True)


def _request(target: str, header: str) -> str:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"


if __name__ == "__main__":
    task = json.loads(sys.stdin.readline())
    if sys.argv[1] == "wait":
        asyncio.run(wait(task))
    else:
        print(json.dumps((measure if sys.argv[1] == "measure" else load)(task)))
