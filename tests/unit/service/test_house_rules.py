"""Rules of the house that no type checker knows, read off the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted([*(ROOT / "service").rglob("*.py"), *(ROOT / "worker").rglob("*.py")])
TRANSITIONS = ROOT / "service" / "jobs" / "transitions.py"
EVENTS = ROOT / "service" / "jobs" / "events.py"
STATEMENTS = {"select", "insert", "update", "delete"}


def statement_makers() -> list[Path]:
    return [path for path in SOURCES if path.name == "repository.py"] + [TRANSITIONS, EVENTS]


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def state_changes(source: str) -> list[int]:
    """Lines that set an attribute ``state``, or a column ``state`` of jobs in an INSERT or UPDATE."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        found += [target.lineno for target in targets if isinstance(target, ast.Attribute) and target.attr == "state"]
        if isinstance(node, ast.Call) and named(node.func) in {"values", "setattr"}:
            about_jobs = any(isinstance(inner, ast.Name) and inner.id == "Job" for inner in ast.walk(node.func))
            words = {keyword.arg for keyword in node.keywords}
            words |= {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
            if "state" in words and (about_jobs or named(node.func) == "setattr"):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_transitions_change_the_state_of_a_job(path: Path) -> None:
    if path != TRANSITIONS:
        assert state_changes(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("job.state = 'failed'", True),
        ("self.job.state: str = 'failed'", True),
        ("session.execute(update(Job).where(Job.id == x).values(state='failed'))", True),
        ("session.execute(update(Job).values({'state': 'failed'}))", True),
        ("setattr(job, 'state', 'failed')", True),
        ("session.execute(update(Upload).values(state='complete'))", False),
        ("app.state.desk = desk", False),
        ("if job.state == 'failed': pass", False),
    ],
)
def test_the_rule_sees_what_it_should(source: str, found: bool) -> None:
    assert bool(state_changes(source)) is found


def test_jobs_are_updated_by_transitions_and_events_only() -> None:
    for path in SOURCES:
        if path in (TRANSITIONS, EVENTS):
            continue
        for call in calls(path):
            if named(call.func) in {"update", "insert"} and call.args:
                assert named(call.args[0]) not in {"Job", "JobEvent"}, f"{path}:{call.lineno}"


def test_statements_are_built_by_repositories_only() -> None:
    allowed = set(statement_makers())
    for path in SOURCES:
        if path in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy":
                made = STATEMENTS & {alias.name for alias in node.names}
                assert not made, f"{path}:{node.lineno} imports {made}"


def test_routers_know_no_repository() -> None:
    for path in (ROOT / "service").rglob("router.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and "repository" in {alias.name for alias in node.names}:
                pytest.fail(f"{path}:{node.lineno} imports a repository")


def test_keys_are_compared_in_constant_time() -> None:
    source = (ROOT / "service" / "deps.py").read_text()
    assert "hmac.compare_digest" in source
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            assert all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops), f"line {node.lineno}"


def test_the_front_desk_runs_without_the_engine() -> None:
    code = (
        "import sys\n"
        "import service.app, service.cli, service.client\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'onnx_ir', 'onnxscript', 'sklearn', 'worker'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
