"""Two workers, a reconciler, a client and bad luck over one database, moved by a seed; what they call is the real code.

A worker here is what ``worker.supervisor`` does with the transitions: it claims, renews, tells of progress and ends its
attempt, once; a transition that says no fences it off. Whatever it does is judged by ``rules`` as soon as it is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.contracts.quota import Quota
from service.contracts.runner import ProgressLine
from service.dispatch import repository as slots
from service.dispatch.dispatcher import Dispatcher
from service.dispatch.release import Released
from service.dispatch.slots import Crew, FreeSlots
from service.idempotency import repository as keys
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.jobs import transitions
from service.jobs.errors import DispatchError
from service.jobs.outcome import Outcome
from tests.db.simulation.rules import Rules
from tests.db.simulation.store import MODELS, Store
from tests.db.test_transitions import FULL, OUTCOME, PROBLEM
from tests.support.front import model_summary
from worker.reconcile.leases import LeaseKeeper, bring_forward, expire_deadlines
from worker.repository import tenant_if_released

LEASE_SECONDS, LOST_SECONDS = 60.0, 30.0
# More than there are jobs: none that is due waits for another.
SLOTS = 9
CLOCK_AHEAD_SECONDS = 7200.0
STEPS = (8, 18)
# Rounds of everybody without any fault after which no job may be left.
QUIET_ROUNDS = 40
SUMMARY = model_summary()
PROGRESS = ProgressLine(stage="ranges", done=1)


@dataclass
class Worker:
    """One worker with one slot: what it knows, which may be wrong."""

    name: str
    job_id: str | None = None
    kind: str = ""
    attempt: int = 0
    frozen_until: float = 0.0
    idle: bool = False

    def forget(self) -> None:
        self.job_id = None


class Broker:
    """Messages that may be lost, doubled and reordered; a carrier of the dispatcher, for as many slots as there are."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, int]] = []
        self.away = False

    def free(self, session: Session) -> FreeSlots:
        by_worker, waiting = slots.started(session)
        running = [started for jobs in by_worker.values() for started in jobs]
        left = SLOTS - sum(started.jobs for started in (*running, *waiting))
        return FreeSlots([Crew(frozenset({"cpu", "inspect"}), left, SLOTS)], running, waiting)

    def send(self, job: Released) -> None:
        if self.away:
            raise DispatchError("The broker is away.", hint="")
        self.messages.append((job.id, job.attempt))

    def ping(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class World:
    """One history, of a seed; every job is canceled before step ``cancel_at``, else whenever the seed says so."""

    store: Store
    seed: int
    cancel_at: int | None = None
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store.reset()
        self.dice = random.Random(self.seed)
        random.seed(self.seed)  # backoffs
        self.broker, self.rules = Broker(), Rules(self.store)
        self._names = count()
        self.workers = [Worker(f"w{next(self._names)}"), Worker(f"w{next(self._names)}")]
        self.keeper = self._new_keeper(is_new=False)  # histories are short: it has been there for long
        self.models = list(MODELS)
        self.requests: dict[str, str | None] = {}  # key -> the job it was answered with
        self.kinds: dict[str, str] = {}

    def run(self) -> int:
        """The whole history, and then quiet until every job has ended; says how many steps it had."""
        acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (2, self._submit), (1, self._repeat), (1, self._cancel), (16, self._work), (6, self._reconcile),
            (1, self._lose_messages), (1, self._double_message), (2, self._toggle), (1, self._arm),
            (1, self._kill_worker), (4, self._freeze_worker), (1, self._restart_reconciler), (1, self._put_clock_back),
        )  # fmt: skip
        weights = [weight for weight, _ in acts]
        self._step(self._submit)
        chosen = self.dice.choices([act for _, act in acts], weights, k=self.dice.randint(*STEPS))
        for number, act in enumerate(chosen):
            self.store.now += self.dice.choice((0.0, 1.0, 5.0, 15.0, 45.0, 90.0))
            if number == self.cancel_at:
                self._step(self._cancel_all)
            self._step(act)
        if self.cancel_at == len(chosen):
            self._step(self._cancel_all)
        self._quiet()
        return len(chosen)

    def _step(self, act: Callable[[], None]) -> None:
        self.history.append(f"{self.store.now - 1e6:7.0f}  {act.__name__.strip('_')}")
        try:
            act()
        except OperationalError:
            self._note("the database was lost")
        self.rules.check()

    def _note(self, words: str) -> None:
        self.history[-1] += f"; {words}"

    def _quiet(self) -> None:
        """No more faults: everything must come to an end."""
        self.store.away = self.store.lose_answer = self.store.lose_commit = self.broker.away = False
        for key, answered in list(self.requests.items()):
            if answered is None:
                self._step(lambda key=key: self._post(key))  # type: ignore[misc]
        for _ in range(QUIET_ROUNDS):
            self._step(self._reconcile)
            if not self.rules.live():
                break
            for worker in self.workers:
                worker.frozen_until = 0.0
                for _ in range(3):
                    self._step(lambda worker=worker: self._finish(worker))  # type: ignore[misc]
                    if worker.idle:
                        break
            # More than LOST_SECONDS in all, and no pause in which leases may have run out unseen.
            self.store.now += 15.5
            self._step(self._reconcile)
            self.store.now += 15.5
        self.rules.check_end(self.requests)

    # the client

    def _submit(self) -> None:
        if len(self.requests) < len(MODELS):
            self._post(f"key-{len(self.requests)}")

    def _repeat(self) -> None:
        if self.requests:
            self._post(self.dice.choice(list(self.requests)))

    def _post(self, key: str) -> None:
        """POST /v1/jobs as ``submit_once`` does it."""
        before = self.requests.setdefault(key, None)
        model = MODELS[int(key[-1])]
        chance = random.Random(f"{self.seed} {key}")
        kind = chance.choice(("quantize", "quantize", "inspect_model"))
        deadline = chance.choice((None, None, None, 100.0))
        with self.store.write() as session:
            request = KeyedRequest("jobs", key, "0" * 64, "0" * 64)
            known = keys.recall(session, "default", request, kept_seconds=1e9, hold=True)
            job_id = None if known is None else str(known.body["id"])
            if job_id is None:
                job = transitions.submit(
                    session,
                    transitions.NewJob(
                        tenant_id="default", kind=kind, model_id=model, config={}, deadline_seconds=deadline
                    ),
                )
                job_id = job.id
                keys.remember(session, "default", request, Answer(202, {"id": job_id}, {}))
        assert before in (None, job_id), f"{key} was answered with two jobs"
        self.requests[key] = job_id
        self.rules.accepted.add(job_id)
        self._note(f"{kind} {self.rules.short(job_id)}")
        self._dispatch()

    def _cancel(self) -> None:
        known = [job_id for job_id in self.requests.values() if job_id is not None]
        if known:
            job_id = self.dice.choice(known)
            self._note(self.rules.short(job_id))
            with self.store.write() as session:
                transitions.request_cancel(session, "default", job_id)

    def _cancel_all(self) -> None:
        for job_id in filter(None, self.requests.values()):
            with self.store.write() as session:
                transitions.request_cancel(session, "default", job_id)

    # workers

    def _work(self) -> None:
        worker = self.dice.choice(self.workers)
        if worker.frozen_until > self.store.now:
            return
        if worker.job_id is None:
            self._take(worker)
            return
        acts: tuple[tuple[int, Callable[[Worker], None]], ...] = (
            (3, self._renew), (3, self._progress), (3, self._succeed), (1, self._fail), (2, self._requeue),
            (1, self._disk_full),
        )  # fmt: skip
        self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])[0](worker)

    def _take(self, worker: Worker) -> None:
        """A message whose job is not to be had is none."""
        if self.broker.messages and not self.broker.away:
            job_id, attempt = self.broker.messages.pop(self.dice.randrange(len(self.broker.messages)))
            self._claim(worker, job_id, attempt)

    def _claim(self, worker: Worker, job_id: str, attempt: int) -> bool:
        with self.store.write() as session:
            if tenant_if_released(session, job_id, attempt) is None:
                return False
            job = transitions.claim(session, job_id, worker_id=worker.name, lease_seconds=LEASE_SECONDS)
        if job is None:
            return False
        assert job.attempt == attempt
        worker.job_id, worker.kind, worker.attempt = job_id, job.kind, job.attempt
        self._note(f"{worker.name} claims {self.rules.short(job_id)} attempt {job.attempt}")
        return True

    def _act(self, worker: Worker, words: str, action: Callable[[Session, str, int], bool], *, ends: bool) -> bool:
        """One write of an attempt. Whoever is no longer the owner must be told no and change nothing."""
        assert worker.job_id is not None
        self._note(f"{worker.name} {words} {self.rules.short(worker.job_id)} attempt {worker.attempt}")
        owner = self.rules.owns(worker.job_id, worker.attempt)
        before = self.store.raw.total_changes
        with self.store.write() as session:
            done = action(session, worker.job_id, worker.attempt)
        assert owner or not done, "a fenced worker was told that it is the owner"
        assert owner or self.store.raw.total_changes == before, "a fenced worker wrote"
        if ends or not done:
            worker.forget()
        return done

    def _renew(self, worker: Worker) -> None:
        canceling: list[bool] = []

        def renew(session: Session, job_id: str, attempt: int) -> bool:
            answer = transitions.renew(session, job_id, attempt, lease_seconds=LEASE_SECONDS)
            canceling.append(answer.cancel_requested)
            return answer.alive

        if self._act(worker, "renews", renew, ends=False) and canceling[0]:
            self._act(worker, "stops", transitions.finish_cancel, ends=True)

    def _progress(self, worker: Worker) -> None:
        self._act(
            worker, "tells of", lambda s, job, attempt: transitions.record_progress(s, job, attempt, PROGRESS),
            ends=False,
        )  # fmt: skip

    def _succeed(self, worker: Worker) -> None:
        result: Outcome = OUTCOME if worker.kind == "quantize" else SUMMARY

        def conclude(session: Session, job_id: str, attempt: int) -> bool:
            return transitions.succeed(session, job_id, attempt, result=result) or transitions.finish_cancel(
                session, job_id, attempt
            )

        self._act(worker, "concludes", conclude, ends=True)

    def _fail(self, worker: Worker) -> None:
        self._act(
            worker, "fails", lambda s, job, attempt: transitions.fail(s, job, attempt, problem=PROBLEM), ends=True
        )

    def _requeue(self, worker: Worker) -> None:
        """It has crashed, or is shut down."""
        charged = self.dice.random() < 0.5
        words = "crashes in" if charged else "puts back"

        def requeue(session: Session, job_id: str, attempt: int) -> bool:
            return transitions.requeue(session, job_id, attempt, delay_seconds=1.0, charged=charged, reason=words)

        self._act(worker, words, requeue, ends=True)

    def _disk_full(self, worker: Worker) -> None:
        def interrupt(session: Session, job_id: str, attempt: int) -> bool:
            return transitions.interrupt(session, job_id, attempt, delay_seconds=20.0, waiting=FULL)

        self._act(worker, "has no room for", interrupt, ends=True)

    def _finish(self, worker: Worker) -> None:
        """What a worker does on a calm day."""
        if worker.job_id is None:
            self._take(worker)
        worker.idle = worker.job_id is None
        if not worker.idle:
            self._succeed(worker)

    # the reconciler

    def _reconcile(self) -> None:
        self.keeper.expire()
        expire_deadlines(self.store, is_behind=self.keeper.is_behind)  # type: ignore[arg-type]
        bring_forward(self.store, lease_seconds=LEASE_SECONDS)  # type: ignore[arg-type]
        self._dispatch()

    def _dispatch(self) -> None:
        Dispatcher(self.store, self.broker, Quota(), lost_seconds=LOST_SECONDS).round()  # type: ignore[arg-type]
        if not self.broker.away:
            self.rules.after_dispatch()

    # bad luck

    def _new_keeper(self, *, is_new: bool) -> LeaseKeeper:
        return LeaseKeeper(self.store, lease_seconds=LEASE_SECONDS, is_new=is_new)  # type: ignore[arg-type]

    def _restart_reconciler(self) -> None:
        self.keeper = self._new_keeper(is_new=True)

    def _kill_worker(self) -> None:
        self.workers[self.dice.randrange(2)] = Worker(f"w{next(self._names)}")

    def _freeze_worker(self) -> None:
        worker = self.dice.choice([worker for worker in self.workers if worker.job_id] or self.workers)
        worker.frozen_until = self.store.now + self.dice.choice((20.0, 90.0, 120.0))

    def _put_clock_back(self) -> None:
        """Workers and their pauses go by clocks of their own."""
        self.store.now -= CLOCK_AHEAD_SECONDS
        for worker in self.workers:
            worker.frozen_until -= CLOCK_AHEAD_SECONDS

    def _lose_messages(self) -> None:
        self.broker.messages.clear()

    def _double_message(self) -> None:
        self.broker.messages += self.dice.sample(self.broker.messages, min(2, len(self.broker.messages)))

    def _toggle(self) -> None:
        which = self.dice.choice((self.broker, self.store))
        which.away = not which.away

    def _arm(self) -> None:
        """The next write loses its commit, or only the answer to it."""
        setattr(self.store, self.dice.choice(("lose_commit", "lose_answer")), True)
