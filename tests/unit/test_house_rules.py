"""The rules of the house that no type checker sees, read off the source: one test per rule, with all its exceptions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest

from tests.support.source import files, nodes, parsed, trees

MOST_LINES = 450

# Every change of a job's state can be read in one package.
TRANSITIONS = "service/jobs/transitions/"
# It counts up the number of a job's last event and touches nothing else of it.
EVENTS = "service/jobs/events.py"
# Words that build SQL statements, and the files that may import them.
STATEMENTS = {"select", "insert", "update", "delete", "text", "func", "exists"}
STATEMENT_FILES = re.compile(rf"(service|worker)/(\w+/)*repository\.py|{TRANSITIONS}\w+\.py|{EVENTS}")
# Pragmas and the clock; defaults and conditions of columns.
STATEMENT_WORDS = {"service/db.py": {"text", "func"}, "service/tables/": {"text", "func"}}

# Waiting for a condition until patience ends; figures for the reader; times that the tested code itself reckons with.
CLOCK_READERS = {
    "tests/db/test_database.py", "tests/fault/soak.py", "tests/golden/__main__.py",
    "tests/security/test_shared_limits.py", "tests/support/server.py",
    "tests/worker/reconcile/rounds.py", "tests/worker/test_children.py", "tests/worker/workbench.py",
}  # fmt: skip
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time", "monotonic_ns", "perf_counter_ns"}


# Fields that hold keys, tokens, or addresses with passwords in them, by class where only some of the name do.
SECRET_FIELDS = {"secret", "token", "password", "api_key", "key_pepper", "database_url", "broker_url"}
SECRETS_OF_CLASSES = {
    "KeyMade.key", "MadeKey.text", "NewKey.text", "StreamToken.url", "Service.key", "RunPlace.key", "Answer.body",
}  # fmt: skip


def named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def imported(tree: Iterable[ast.AST], package: str) -> set[str]:
    """What a file takes from a package and its modules, by name."""
    return {
        alias.name
        for node in tree
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
        for alias in node.names
    }


def test_files_stay_short() -> None:
    for name, path in files("quantmill", "service", "worker", "benchmarks", "tests").items():
        lines = len(path.read_text().splitlines())
        assert lines <= MOST_LINES, f"{name} has {lines} lines"


@pytest.mark.slow
def test_modules_say_what_they_are_for() -> None:
    modules = files("quantmill", "service", "worker")
    assert [name for name, path in modules.items() if ast.get_docstring(parsed(path)) is None] == []


@pytest.mark.slow
def test_no_repr_shows_a_secret() -> None:
    seen = set()
    for name, tree in trees("quantmill", "service", "worker").items():
        for record in (node for node in tree if isinstance(node, ast.ClassDef)):
            for part in (node for node in record.body if isinstance(node, ast.AnnAssign)):
                field = f"{record.name}.{named(part.target)}"
                if named(part.target) in SECRET_FIELDS or field in SECRETS_OF_CLASSES:
                    seen.add(field)
                    told = ast.unparse(part)
                    assert "repr=False" in told or "SecretStr" in told, f"{name}: the repr of {field} shows it"
    assert seen >= SECRETS_OF_CLASSES


@pytest.mark.slow
def test_only_repositories_build_statements() -> None:
    seen = 0
    for name, tree in trees("quantmill", "service", "worker").items():
        words = imported(tree, "sqlalchemy") & STATEMENTS
        seen += bool(words)
        allowed = [some for start, some in STATEMENT_WORDS.items() if name.startswith(start)]
        if not STATEMENT_FILES.fullmatch(name):
            assert words <= set().union(*allowed), f"{name} imports {words} of sqlalchemy"
    assert seen > 5, "the rule sees no statements"


def state_changes(tree: Iterable[ast.AST]) -> list[int]:
    """Lines that set an attribute ``state``, or a column ``state`` of jobs in an INSERT or UPDATE."""
    found = []
    for node in tree:
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


@pytest.mark.slow
def test_only_transitions_change_the_state_of_a_job() -> None:
    for name, tree in trees("quantmill", "service", "worker").items():
        assert name.startswith(TRANSITIONS) or not state_changes(tree), f"{name}: {state_changes(tree)}"


def test_every_way_to_change_a_state_is_seen() -> None:
    for source, seen in (
        ("job.state = 'failed'", True),
        ("self.job.state: str = 'failed'", True),
        ("session.execute(update(Job).where(Job.id == x).values(state='failed'))", True),
        ("session.execute(update(Job).values({'state': 'failed'}))", True),
        ("setattr(job, 'state', 'failed')", True),
        ("session.execute(update(Upload).values(state='complete'))", False),
        ("app.state.app = app", False),
        ("if job.state == 'failed': pass", False),
    ):
        assert bool(state_changes(ast.walk(ast.parse(source)))) is seen, source


def test_only_transitions_and_events_write_rows_of_jobs() -> None:
    writers = {
        TRANSITIONS if name.startswith(TRANSITIONS) else name
        for name, tree in trees("quantmill", "service", "worker").items()
        for node in tree
        if isinstance(node, ast.Call) and named(node.func) in {"update", "insert"} and node.args
        if named(node.args[0]) in {"Job", "JobEvent"}
    }
    assert writers == {TRANSITIONS, EVENTS}


def test_routers_know_no_repository() -> None:
    routers = {name: tree for name, tree in trees("service").items() if name.endswith("/router.py")}
    assert len(routers) > 5
    for name, tree in routers.items():
        assert not any(isinstance(node, ast.alias) and "repository" in node.name for node in tree), name


# What holds a secret, or what one is checked against, wherever it is called so.
SECRETS = {"text", "secret", "secret_hash", "fixed", "kept", "key", "pepper", "credentials", "api_key"}


def test_keys_are_compared_in_constant_time() -> None:
    found = files("service")
    assert any(named(node) == "compare_digest" for node in nodes(found["service/keys/keyring.py"]))
    for name in (name for name in found if name == "service/deps.py" or name.startswith("service/keys/")):
        for node in nodes(found[name]):
            if isinstance(node, ast.Compare) and not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                sides = {named(side) for side in (node.left, *node.comparators)}
                assert not sides & SECRETS, f"{name} line {node.lineno}"


# What holds words for people, wherever it is called so; what they mean is told by the code beside them.
WORDS = {"reason", "activation_reason", "bias_reason", "words", "hint", "detail", "said"}
LOOKS = {"startswith", "endswith", "removeprefix", "find", "index", "count", "partition", "split"}
SEARCHES = {"search", "match", "fullmatch", "findall"}


def holds_words(node: ast.expr) -> bool:
    """True for ``reason``, ``entry.reason``, ``str(entry.reason)`` and ``entry.reason or ""``."""
    if isinstance(node, ast.BoolOp):
        return any(holds_words(value) for value in node.values)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "str" and any(map(holds_words, node.args))
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in WORDS


def is_text(node: ast.expr) -> bool:
    """True for a string, and for a tuple, list or set of them."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_text, node.elts))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def reads_words(tree: Iterable[ast.AST]) -> list[int]:
    """Lines that look for something in the words of a reason, or compare them with a sentence."""
    lines = []
    for node in tree:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks = node.func.attr in LOOKS and holds_words(node.func.value)
            if looks or (node.func.attr in SEARCHES and any(map(holds_words, node.args))):
                lines.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            within = isinstance(node.ops[0], ast.In | ast.NotIn) and holds_words(node.comparators[0])
            if within or (any(map(holds_words, sides)) and any(map(is_text, sides))):
                lines.append(node.lineno)
    return lines


def test_reading_the_words_of_a_reason_is_told_from_carrying_them() -> None:
    for code, told in (
        ('row.reason.startswith("not applicable")', True),
        ('(row.reason or "").startswith(NOT_APPLICABLE)', True),
        ('"pads" in str(entry.reason)', True),
        ("words in entry.reason.words", True),
        ('entry.reason == "its input is constant"', True),
        ('step.detail in ("no functions", "no float16")', True),
        ("PATTERN.search(node.hint)", True),
        ("row.reason_code == NOT_APPLICABLE.code", False),
        ("entry.reason is None", False),
        ("entry.reason in {IN_FLOAT(), EXCLUDED()}", False),
        ("groups[entry.reason].append(name)", False),
    ):
        assert bool(reads_words(ast.walk(ast.parse(code)))) is told, code


def test_nothing_reads_the_words_of_a_reason() -> None:
    for name, tree in trees("quantmill", "service", "worker").items():
        # what onnxruntime says is somebody else's English, and has no codes
        assert name.startswith("worker/quantizer/runtime/") or not reads_words(tree), f"{name}: {reads_words(tree)}"


def reads_clock(tree: Iterable[ast.AST]) -> bool:
    """True if seconds can be measured here: by a clock of ``time`` or another module, or by an answer's ``elapsed``."""
    for node in tree:
        if isinstance(node, ast.Import) and any(alias.name in {"time", "timeit"} for alias in node.names):
            # under its own name its clocks are seen
            if any(alias.asname or alias.name == "timeit" for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom) and node.module in {"time", "timeit"}:
            if {alias.name for alias in node.names} - {"sleep"}:
                return True
        elif isinstance(node, ast.Attribute) and (
            node.attr == "elapsed" or (named(node.value) == "time" and node.attr in CLOCKS)
        ):
            return True
    return False


def test_reading_a_clock_is_seen() -> None:
    for code, seen in (
        ("begin = time.monotonic()", True),
        ("import time as t", True),
        ("from time import perf_counter", True),
        ("from timeit import timeit", True),
        ("assert answer.elapsed < limit", True),
        ("SimpleNamespace(clock=time.monotonic)", True),
        ("import time", False),
        ("from time import sleep", False),
        ("time.sleep(0.1)", False),
    ):
        assert reads_clock(ast.walk(ast.parse(code))) is seen, code


@pytest.mark.slow
def test_tests_read_no_clock() -> None:
    """A test that asserts seconds fails where the machine is busy; ``benchmarks`` measures them."""
    assert {name for name, tree in trees("tests").items() if reads_clock(tree)} <= CLOCK_READERS


# Above it a number says how long something may take; below it, how long to let something happen.
LONGEST_PAUSE_SECONDS = 2.0
WAITS = {"wait", "join", "result", "communicate", "acquire"}


def impatient(tree: Iterable[ast.AST]) -> list[int]:
    """Lines that give up after a number of seconds."""
    lines = []
    for node in tree:
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg in {"timeout", "timeout_seconds"}]
            if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                given += node.args
            lines += [
                node.lineno
                for value in given
                if isinstance(value, ast.Constant)
                if isinstance(value.value, int | float) and value.value > LONGEST_PAUSE_SECONDS
            ]
    return lines


def test_giving_up_after_seconds_is_seen() -> None:
    for code, seen in (
        ("assert begun.wait(60)", True),
        ("httpx.get(url, timeout=30)", True),
        ("client.wait(job, timeout_seconds=600.0)", True),
        ("begun.wait(PATIENCE_SECONDS)", False),
        ("httpx.get(url, timeout=3 * PATIENCE_SECONDS)", False),
        ("thread.join(2.0)", False),
        ("', '.join(names)", False),
    ):
        assert bool(impatient(ast.walk(ast.parse(code)))) is seen, code


def test_tests_have_one_patience() -> None:
    """It can be made longer in one place, for a machine that is busy, or shorter, for a test that hangs."""
    assert {name: lines for name, tree in trees("tests").items() if (lines := impatient(tree))} == {}
