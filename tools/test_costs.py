"""What the tests cost: by folder, file and fixture; how much of it is waiting, and what starts processes and databases.

    QUANTMILL_COSTS=FOLDER make test PYTEST_ARGS="-p tools.test_costs"
    python -m tools.test_costs FOLDER [BEFORE]       the tables of docs/testing.md; beside another run's

CPU seconds are those of the process and of the children that it has waited for; waiting is the rest of the time, and
counts what other processes (a database, a service that several tests share) work meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_DATABASES = {"sqlite_url", "_sqlite_template", "postgres_url", "_postgres_session_url", "database_url"}
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}


def _cpu_seconds() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


class _Plugin:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._out = (folder / f"costs-{worker}-{os.getpid()}.jsonl").open("w")
        self._begun = time.monotonic()
        self._processes = 0
        self._fixtures: dict[str, float] = {}
        self._nested = 0.0
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _: Any) -> None:
        self._processes += event in _STARTS

    def _write(self, **entry: Any) -> None:
        self._out.write(json.dumps(entry) + "\n")
        self._out.flush()

    def pytest_collection_finish(self) -> None:
        """What a process of the tests has spent before its first test: imports and collection."""
        self._write(id="", wall=round(time.monotonic() - self._begun, 3), cpu=round(_cpu_seconds(), 3))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Its seconds, without those of the fixtures that it asks for."""
        before, self._nested = self._nested, 0.0
        begun = time.monotonic()
        yield
        spent = time.monotonic() - begun
        self._fixtures[fixturedef.argname] = self._fixtures.get(fixturedef.argname, 0.0) + spent - self._nested
        self._nested = before + spent

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._fixtures, processes = {}, self._processes
        cpu, begun = _cpu_seconds(), time.monotonic()
        yield
        self._write(
            id=item.nodeid,
            wall=round(time.monotonic() - begun, 4),
            cpu=round(_cpu_seconds() - cpu, 4),
            processes=self._processes - processes,
            fixtures={name: round(seconds, 4) for name, seconds in self._fixtures.items()},
            browser="browser" in getattr(item, "fixturenames", ()),
        )


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Plugin(Path(os.environ["QUANTMILL_COSTS"])))


def _read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("costs-*.jsonl")) for line in path.read_text().splitlines()]


class Sum:
    """Of some tests."""

    def __init__(self) -> None:
        self.tests = self.processes = self.databases = self.browsers = 0
        self.wall = self.cpu = 0.0

    def add(self, entry: dict[str, Any]) -> None:
        """One test more."""
        self.tests += 1
        self.wall += entry["wall"]
        self.cpu += entry["cpu"]
        self.processes += entry["processes"]
        self.databases += len(_DATABASES & set(entry["fixtures"])) > 0
        self.browsers += entry["browser"]

    @property
    def row(self) -> str:
        """Cells of a table."""
        waiting = max(0.0, self.wall - self.cpu)
        figures = (self.tests, f"{self.wall:.0f}", f"{self.cpu:.0f}", f"{waiting:.0f}")
        return " | ".join(map(str, (*figures, self.processes, self.databases, self.browsers)))


_HEAD = "tests | seconds | CPU | waiting | processes | databases | browser"


def _table(title: str, sums: dict[str, Sum], before: dict[str, Sum], most: int) -> Iterator[str]:
    beside = " | before: tests | seconds" if before else ""
    yield f"| {title} | {_HEAD}{beside} |"
    yield "|---" * (8 + 2 * bool(before)) + "|"
    names = sorted(before.keys() | sums.keys(), key=lambda name: -(before or sums).get(name, Sum()).wall)[:most]
    for name in names:
        old = before.get(name, Sum())
        yield f"| {name} | {sums.get(name, Sum()).row}{f' | {old.tests} | {old.wall:.0f}' if before else ''} |"


def _sums(entries: list[dict[str, Any]], parts: int | None) -> dict[str, Sum]:
    found: dict[str, Sum] = defaultdict(Sum)
    for entry in entries:
        file = entry["id"].split("::")[0]
        folder = file.split("/")[:-1]
        found["/".join(folder[: parts + (folder[1:2] == ["unit"])]) if parts else file].add(entry)
    return found


def main(folder: Path, before: Path | None) -> None:
    everything = _read(folder)
    entries, old = ([e for e in read if e["id"]] for read in (everything, _read(before) if before else []))
    starts = [entry for entry in everything if not entry["id"]]
    print(
        f"{len(starts)} processes of tests spent {sum(entry['wall'] for entry in starts):.0f} s before their tests.\n"
    )
    print(*_table("folder", _sums(entries, 2), _sums(old, 2) if old else {}, 100), sep="\n")
    whole = _sums([{**entry, "id": "all/all"} for entry in entries], 1)
    print(*(f"| all | {row.row} |" for row in whole.values()), "", sep="\n")
    print(*_table("file", _sums(entries, None), _sums(old, None) if old else {}, 20), "", sep="\n")
    fixtures: Counter[str] = Counter()
    for entry in entries:
        fixtures.update(entry["fixtures"])
    print("| fixture | seconds |", "|---|---|", *(f"| {n} | {s:.0f} |" for n, s in fixtures.most_common(15)), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
