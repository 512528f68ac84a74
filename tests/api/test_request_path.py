"""The way of one request through the service, counted: what docs/architecture.md lists is what is called."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import service
from tests.api.conftest import ON_SQLITE
from tests.support.front import Front, taken

pytestmark = ON_SQLITE
HOUSE = Path(service.__file__).parent
ARCHITECTURE = HOUSE.parent / "docs" / "architecture.md"
# What carries a request for a job from the router to the commit; other rooms do one thing each for it.
ROOMS, MOST = ("service/jobs/", "service/idempotency/"), 20
# What reads one page of jobs, from the router to the first item.
LIST_ROOMS, MOST_OF_A_LIST = ("service/jobs/", "service/http.py", "service/pagination.py", "service/repository.py"), 16


class Calls:
    """Functions of the service that are called while it is told to listen, in the order of their first calls."""

    def __init__(self) -> None:
        self.listens = False
        self.names: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if not self.listens or event != "call" or HOUSE not in path.parents:
            return
        # a comprehension is no function of ours, and neither is what only names something of a record
        is_property = isinstance(getattr(type(frame.f_locals.get("self")), code.co_name, None), property)
        if "<" not in code.co_name and not is_property:
            self.names.setdefault(f"{path.relative_to(HOUSE.parent)} {code.co_qualname}")

    def of(self, rooms: tuple[str, ...], first: str, last: str) -> list[str]:
        """Those of the rooms from ``first`` to ``last``, by the names of functions."""
        names = list(self.names)
        begin, end = (next(k for k, name in enumerate(names) if name.endswith(f" {word}")) for word in (first, last))
        return [name for name in names[begin : end + 1] if name.startswith(rooms)]


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Of all threads that begin from now on, so asked for before the application."""
    heard = Calls()
    threading.setprofile(heard)
    yield heard
    threading.setprofile(None)


def test_a_job_is_submitted_by_few_functions(calls: Calls, front: Front) -> None:
    body = front.job_body(config={"preset": "int8_percentile"}, name="nightly")
    body["evaluation_dataset_id"] = front.ready_dataset()
    taken(front.http.post("/v1/jobs", json=body), 202)  # whatever is imported late is imported now
    calls.listens = True
    taken(front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "key"}), 202)
    calls.listens = False
    carried = calls.of(ROOMS, "create_job", "remember")
    assert len(carried) <= MOST, carried
    told = re.findall(r"`(?:\w+\.)?(\w+)`", ARCHITECTURE.read_text())
    assert {name.rpartition(" ")[2].rpartition(".")[2] for name in carried} <= set(told)


def test_a_page_of_jobs_is_listed_by_few_functions(calls: Calls, front: Front) -> None:
    front.new_job()
    taken(front.http.get("/v1/jobs"))
    calls.listens = True
    taken(front.http.get("/v1/jobs?state=queued&limit=1"))
    calls.listens = False
    carried = calls.of(LIST_ROOMS, "list_jobs", "job_listed")
    assert len(carried) <= MOST_OF_A_LIST, carried
