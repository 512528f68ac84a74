"""The rules of the house that no type checker sees: who imports whom, who builds statements, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("service", "worker", "benchmarks", "tests")
MOST_LINES = 450
# Every change of a job's state can be read in one place.
LONGER = {"service/jobs/transitions.py": 500}

ENGINE = ("torch", "onnxruntime", "onnx", "onnx_ir", "onnxscript", "safetensors")
# Files that build SQL statements; db.py speaks to the driver alone (pragmas, clock).
STATEMENT_FILES = re.compile(r"(service|worker)/(\w+/)*repository\.py|service/(jobs/transitions|jobs/events|db)\.py")
STATEMENTS = {"select", "insert", "update", "delete", "text", "func", "exists"}


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_import_contracts_are_kept() -> None:
    done = run_python(
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports('pyproject.toml', no_cache=True))"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["service.app", "service.contracts.runner", "service.client", "worker.tasks"])
def test_the_front_desk_and_the_parents_never_load_the_engine(module: str) -> None:
    done = run_python(f"import {module}, sys; print(*sorted(set({ENGINE}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_contracts_load_nothing_but_pydantic() -> None:
    done = run_python(
        "import pkgutil, sys, importlib, service.contracts as c\n"
        "[importlib.import_module(f'service.contracts.{m.name}') for m in pkgutil.iter_modules(c.__path__)]\n"
        "print(*sorted({'numpy', 'sqlalchemy', 'fastapi', 'celery', 'httpx'} & set(sys.modules)))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_files_stay_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in sources(*PACKAGES)}
    assert {name: length for name, length in lengths.items() if length > LONGER.get(name, MOST_LINES)} == {}


def statement_imports(path: Path) -> set[str]:
    """Names by which SQL statements are built, as far as the file imports them."""
    return {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sqlalchemy"
        for alias in node.names
        if alias.name in STATEMENTS
    }


def test_only_repositories_build_statements() -> None:
    found = {
        name_of(path): names
        for path in sources("service", "worker")
        if not STATEMENT_FILES.fullmatch(name_of(path)) and (names := statement_imports(path))
    }
    assert {name: names for name, names in found.items() if not name.startswith("service/tables/")} == {}


def test_only_transitions_change_the_state_of_a_job() -> None:
    # events.py counts up the number of a job's last event and touches nothing else.
    writers = {"service/jobs/transitions.py", "service/jobs/events.py"}
    trees = {name_of(path): ast.parse(path.read_text()) for path in sources("service", "worker")}
    assert {name for name, tree in trees.items() if updates_jobs(tree)} == writers
    assert [name for name, tree in trees.items() if sets_state(tree) and name not in writers] == []


def updates_jobs(tree: ast.Module) -> bool:
    """True if the file says ``update(Job)``."""
    return any(isinstance(node, ast.Call) and ast.unparse(node) == "update(Job)" for node in ast.walk(tree))


def sets_state(tree: ast.Module) -> bool:
    """True if the file says ``job.state = ...``."""
    return any(
        isinstance(target, ast.Attribute) and target.attr == "state" and ast.unparse(target.value).endswith("job")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


@pytest.mark.parametrize("package", ["service", "worker"])
def test_packages_say_what_they_are_for(package: str) -> None:
    silent = [name_of(path) for path in sources(package) if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert silent == []
