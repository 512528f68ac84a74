"""A tenant's crowd of inspections: how many of them run in a worker, and how far they stand back."""

from __future__ import annotations

import threading

from tests.worker.workbench import Workbench, finish, wait_for
from worker.company import Company
from worker.slots import Slot, Slots

NOTED = """
import pathlib
job = os.path.basename(os.getcwd()).split(".")[0]
# man 5 proc_pid_stat: the nineteenth field
niceness = open("/proc/self/stat").read().rpartition(")")[2].split()[16]
autogroup = pathlib.Path("/proc/self/autogroup")  # "/autogroup-7 nice 5"
whole = autogroup.read_text().split()[-1] if autogroup.exists() else niceness
assert whole == niceness, (whole, niceness)
pathlib.Path(os.environ["BENCH"], "nice-" + job).write_text(niceness)
while not os.path.exists(os.environ["BENCH"] + "/go"): time.sleep(0.02)
succeed()
"""


def test_a_slot_is_kept_for_whoever_has_none(bench: Workbench) -> None:
    company = Company(most=2)
    supervisor = bench.supervisor(NOTED, company=company)
    slots = Slots([Slot(supervisor)] * 3, bench.database, ("inspect",), company=company)
    crowd = [bench.submit("crowd") for _ in range(4)]
    threads = [threading.Thread(target=slots.work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: [bench.job(job).state for job in crowd] == ["running", "running", "queued", "queued"])
    wait_for(lambda: slots.free == 1 and sum(thread.is_alive() for thread in threads) == 2)
    assert not slots.could_start(), "what waits for its own tenant is not overdue"
    other = bench.submit("other")
    assert slots.could_start()
    threads.append(threading.Thread(target=slots.work))
    threads[-1].start()
    wait_for(lambda: bench.job(other).state == "running")
    (bench.folder / "go").touch()
    for thread in threads:
        finish(thread)
    assert {bench.job(job).state for job in [*crowd, other]} == {"succeeded"}
    assert not company.crowds()


def test_a_crowd_weighs_as_much_as_one(bench: Workbench) -> None:
    def niceness(job: str) -> int:
        file = bench.folder / f"nice-{job}"
        return int(wait_for(lambda: file.exists() and file.read_text()))

    def start(tenant: str) -> str:
        job = bench.submit(tenant)
        threads.append(threading.Thread(target=supervisor.run, args=(job,)))
        threads[-1].start()
        return job

    supervisor, threads = bench.supervisor(NOTED), list[threading.Thread]()
    alone = niceness(start("crowd"))
    assert [niceness(start("crowd")) - alone for _ in range(2)] == [3, 5]
    # weights of nice 3 and 5 beside that of 0, in the kernel's table: a half and a third
    assert [round(1024 / weight) for weight in (526, 335)] == [2, 3]
    assert niceness(start("other")) == alone
    (bench.folder / "go").touch()
    for thread in threads:
        finish(thread)


def test_what_could_not_join_is_not_counted() -> None:
    company = Company(most=1)
    assert company.join("one")
    assert not company.join("one")
    assert company.join("two")
    assert company.crowds() == {"one", "two"}
    company.leave("one")
    assert company.crowds() == {"two"}
    assert company.join("one")
    assert Company().join("one")
    assert not Company().crowds()
