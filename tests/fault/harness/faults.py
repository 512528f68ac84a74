"""What may happen to an installation on a bad night, each done and undone by one call, drawn by a seeded generator."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import func, select

from service.tables import Job
from service.tables.jobs import LIVE_STATES
from tests.fault.harness.disk import SmallDisk
from tests.fault.harness.installation import LEASE_SECONDS, Installation
from tests.fault.harness.processes import Process

# Charged attempts of a live job from which on nothing that costs it another one is done: three would end it.
_SPARED_FROM = 2
# A server of HTTP ends by the signal itself, once it has done what was begun.
ASKED_TO_END = (0, -signal.SIGTERM)
_BLINK_SECONDS = (0.1, 0.8)
_OUTAGE_SECONDS = (0.5, 2.0 * LEASE_SECONDS)
_API_PLACES = ("before_submit_commit", "after_submit_commit", "after_release", "after_publish")


class Faults:
    """Does faults and counts them. Processes that a fault has ended are started again, as an operator's tool would."""

    def __init__(self, installation: Installation, generator: random.Random, disk: SmallDisk | None = None) -> None:
        self.done: Counter[str] = Counter()
        self.died: list[str] = []
        self._installation = installation
        self._random = generator
        self._disk = disk
        # Those of the first kind cost a job that is running an attempt.
        self._charged: dict[str, Callable[[], None]] = {
            "kill worker": lambda: self._kill(self._any_worker()),
            "pause worker": lambda: self._pause(self._any_worker(), 2.0 * LEASE_SECONDS),
            "kill runner": self._kill_runner,
            "database away": lambda: self._database(_OUTAGE_SECONDS),
            "kill all": self._kill_all,
        }
        self._free: dict[str, Callable[[], None]] = {
            "kill api": lambda: self._kill(installation.api),
            "stop api": lambda: self._stop(installation.api),
            "pause api": lambda: self._pause(installation.api, LEASE_SECONDS),
            "kill api at a submission": self._kill_api_at_a_place,
            "stop worker": lambda: self._stop(self._any_worker()),
            "kill reconciler": lambda: self._kill(installation.reconciler),
            "pause reconciler": lambda: self._pause(installation.reconciler, LEASE_SECONDS),
            "database blinks": lambda: self._database(_BLINK_SECONDS),
        }
        if installation.servers is not None:
            self._free |= {"broker away": self._broker, "messages lost": installation.lose_messages}
            self._free["broker frozen"] = lambda: self._pause(installation.servers.redis.process, LEASE_SECONDS)  # type: ignore[union-attr]
        if disk is not None:
            self._free["disk full"] = self._fill_disk

    def one(self) -> None:
        self._keep()
        names = sorted(self._free) + (sorted(self._charged) if self._may_charge() else [])
        name = self._random.choice(names)
        self.done[name] += 1
        {**self._free, **self._charged}[name]()
        self._installation.start()

    def pause(self) -> None:
        time.sleep(self._random.uniform(0.2, 2.5))

    def _keep(self) -> None:
        for process in self._installation.processes:
            if not process.alive:
                self.died.append(f"{process.name} ended by itself with {process.returncode}")
        self._installation.start()

    def _may_charge(self) -> bool:
        with self._installation.database.read() as session:
            hurt = select(func.count()).where(
                Job.state.in_(LIVE_STATES), Job.attempt - Job.interruptions >= _SPARED_FROM
            )
            return not session.scalar(hurt)

    def _any_worker(self) -> Process:
        return self._random.choice(self._installation.workers)

    def _kill(self, process: Process) -> None:
        process.kill()

    def _stop(self, process: Process, *, armed: bool = False) -> None:
        """Ask it to end; one that is armed may be killed while it does what was begun."""
        code = process.stop()
        if code not in ASKED_TO_END and not (armed and code == -signal.SIGKILL):
            self.died.append(f"{process.name} ended with {code} when it was asked to stop")

    def _pause(self, process: Process, seconds: float) -> None:
        with self._installation.paused(process):
            time.sleep(self._random.uniform(0.1, seconds))

    def _kill_runner(self) -> None:
        runners = self._installation.runners()
        if runners:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(runners), signal.SIGKILL)

    def _kill_all(self) -> None:
        for process in self._installation.processes:
            process.send(signal.SIGKILL)
        for process in self._installation.processes:
            process.wait()

    def _kill_api_at_a_place(self) -> None:
        api = self._installation.api
        self._stop(api)
        self._installation.start(api, **{self._random.choice(_API_PLACES): "kill@2"})
        time.sleep(1.0)
        if api.alive:
            self._stop(api, armed=True)

    def _database(self, seconds: tuple[float, float]) -> None:
        self._installation.break_database()
        time.sleep(self._random.uniform(*seconds))
        self._installation.mend_database()

    def _broker(self) -> None:
        self._installation.break_broker()
        time.sleep(self._random.uniform(*_OUTAGE_SECONDS))
        self._installation.mend_broker()

    def _fill_disk(self) -> None:
        assert self._disk is not None
        self._disk.fill()
        time.sleep(self._random.uniform(*_OUTAGE_SECONDS))
        self._disk.free()
