"""Which functions of the project each test runs: what planted faults choose their tests by.

    QUANTMILL_RECORD=FOLDER pytest -n 2 -p tools.mutation.record

Needs a C compiler. Child processes are recorded, too, for the test that started them: while the run lasts, a file
beside the installed packages has every Python of this environment ask for it. A service that several tests share
counts for the first of them.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TextIO

import pytest

from tools.mutation import child
from tools.mutation.faults import ROOT

_HOOK = Path(sysconfig.get_paths()["purelib"]) / "quantmill_record.pth"
_IN_CHILDREN = (
    f"import os; os.environ.get({child.TEST!r}) and __import__('tools.mutation.child').mutation.child.record()"
)


class Record:
    """What this plugin has recorded in a folder."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.functions: dict[str, set[str]] = defaultdict(set)
        for path in folder.glob("calls-*.jsonl"):
            names: list[str] = []
            for entry in map(json.loads, path.read_text().splitlines()):
                names += entry["new"]
                self.functions[entry["id"]] |= {names[number] for number in entry["run"]}
                self.seconds[entry["id"]] = entry["seconds"]
        for path in folder.glob("child-*.txt"):
            test, *lines = path.read_text(errors="replace").splitlines()
            if test in self.functions:
                self.functions[test] |= set(lines)

    @cached_property
    def breadth(self) -> dict[str, int]:
        """How many functions each test runs."""
        return {test: len(functions) for test, functions in self.functions.items()}

    @cached_property
    def _by_place(self) -> dict[tuple[str, int], set[str]]:
        """Tests by the file and first line of a function; those of line 0 run anything of the file."""
        found: dict[tuple[str, int], set[str]] = defaultdict(set)
        for test, functions in self.functions.items():
            for function in functions:
                file, line, _ = function.split(":", 2)
                found[file, int(line)].add(test)
                found[file, 0].add(test)
        return found

    def tests_at(self, file: str, text: str, line: int) -> set[str]:
        """Tests that run the function around a line of the file; outside of all functions, any of the file."""
        return self._by_place[file, _function_around(text, line)]


def _function_around(text: str, line: int) -> int:
    """The first line, decorators counted, of the innermost function around a line; 0: there is none."""
    around = [
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno < line <= (node.end_lineno or 0)
    ]
    return max(around, default=0)


class _Plugin:
    def __init__(self, folder: Path) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._out: TextIO = (folder / f"calls-{worker}-{os.getpid()}.jsonl").open("w")
        self._numbers: dict[object, int] = {}
        self._calls = child.calls()
        self._calls.start(f"{ROOT}/", -1)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._calls.take()
        os.environ[child.TEST] = item.nodeid[:400]
        begun = time.monotonic()
        yield
        seconds = round(time.monotonic() - begun, 4)
        new, run = [], []
        for code in self._calls.take():
            if code not in self._numbers:
                self._numbers[code] = len(self._numbers)
                new.append(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno}:{code.co_qualname}")
            run.append(self._numbers[code])
        self._out.write(json.dumps({"id": item.nodeid, "seconds": seconds, "new": new, "run": run}) + "\n")
        self._out.flush()


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["QUANTMILL_RECORD"]).resolve()
    os.environ[child.FOLDER] = str(folder)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        source = Path(__file__).with_name("calls.c")
        include = sysconfig.get_paths()["include"]
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", folder / "calls.so"], check=True)
        _HOOK.write_text(f"{ROOT}\n{_IN_CHILDREN}\n")
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Plugin(folder))


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _HOOK.unlink(missing_ok=True)
