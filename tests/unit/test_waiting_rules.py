"""Who must not be kept waiting, read off the source: the database's other writers, and the event loop.

While one transaction writes, no other does; while a coroutine computes or blocks, no request is served.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tests.support.source import files, parsed

# Of these modules any function may take a tenth of a second on a config within its bounds.
COMPUTING_MODULES = ("service.contracts", "service.quark", "service.bodies", "hashlib", "re2")
COMPUTING = {"model_validate", "model_validate_json", "loads", "parse_config", "placed", "taken_over", "file_sha256"}
# A key of some characters into a number; one small record per job that waits, or per tenant; a row of the audit.
SMALL = {
    "service/repository.py:try_alone", "service/jobs/waiting.py:waiting_for",
    "service/quotas/service.py:quota_of", "service/quotas/service.py:running_limits", "service/audit/service.py:note",
}  # fmt: skip
LIGHT = {"parse_content_digest"}
# Their last argument stores what was asked for.
SUBMITS = {"submit_once"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def module_of(node: ast.Call) -> str:
    """``json`` of ``json.loads(data)``."""
    inner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return inner.id if isinstance(inner, ast.Name) else ""


@cache
def session_functions() -> dict[str, list[tuple[str, Function]]]:
    """Functions of the service that are given a session, by name, with the file that each stands in."""
    found: dict[str, list[tuple[str, Function]]] = {}
    for name, path in files("service").items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, Function) and any(
                isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Session"
                for argument in (*node.args.args, *node.args.kwonlyargs)
            ):
                found.setdefault(node.name, []).append((name, node))
    return found


@cache
def computing_names(tree: ast.Module) -> set[str]:
    """What a file has imported to compute with: functions of the modules above, not their classes and constants."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(COMPUTING_MODULES):
            names |= {alias.asname or alias.name for alias in node.names if alias.name.islower()}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name.startswith(COMPUTING_MODULES)}
    return names | COMPUTING


def writing_blocks(tree: ast.AST) -> Iterator[ast.AST]:
    """What is done while a transaction writes: ``with ... .write()``, and what ``submit_once`` is given to store."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(
            isinstance(item.context_expr, ast.Call) and called(item.context_expr) == "write" for item in node.items
        ):
            yield from node.body
        elif isinstance(node, ast.Call) and called(node) in SUBMITS:
            yield node.args[-1]


def computes(block: ast.AST, tree: ast.Module, seen: set[str] | None = None) -> list[str]:
    """Calls that compute, of a block and of every function that it gives its session to."""
    found = []
    seen = set() if seen is None else seen
    names = computing_names(tree)
    for node in ast.walk(block):
        if isinstance(node, ast.Call) and (called(node) in names or module_of(node) in names):
            found.append(called(node))
        name = called(node) if isinstance(node, ast.Call) else node.id if isinstance(node, ast.Name) else ""
        for where, function in session_functions().get(name, []):
            key = f"{where}:{name}"
            if key not in seen | SMALL and name not in SUBMITS:
                seen.add(key)
                found += [f"{name} > {call}" for call in computes(function, parsed(files("service")[where]), seen)]
    return found


@pytest.mark.slow
def test_nothing_is_computed_while_others_may_not_write() -> None:
    told = {}
    blocks = 0
    for name, path in files("service").items():
        tree = parsed(path)
        for block in writing_blocks(tree):
            blocks += 1
            if calls := computes(block, tree):
                told[f"{name}:{block.lineno}"] = calls
    assert blocks > 12, "the rule sees no transactions"
    assert told == {}


def test_computing_in_a_transaction_is_seen() -> None:
    head = "from service.contracts.compatibility import check_selected\nimport hashlib, json\n"
    for source, seen in (
        ("with app.database.write() as session:\n    check_selected(config, model)", True),
        ("with app.database.write() as session:\n    QuantizationConfig.model_validate(row.config)", True),
        ("with database.write() as s:\n    json.loads(data)", True),
        ("with database.write() as s:\n    hashlib.sha256(data)", True),
        # as it was once: what checks reads its rows by the session that writes
        ("submit_once(app, by, request, None, lambda _, session: checked_request(session, tenant, body))", True),
        ("submit_once(app, by, request, check, partial(checked_request, tenant, body))", True),
        ("check_selected(config, model)\nwith database.write() as s:\n    repository.create(s, config)", False),
        ("with database.read() as s:\n    check_selected(config, model)", False),
    ):
        tree = ast.parse(head + source)
        assert any(computes(block, tree) for block in writing_blocks(tree)) is seen, source


BLOCKING = {"sleep", "read_bytes", "read_text", "write_bytes", "write_text", "open", "connect", "getaddrinfo", "fsync"}
ON_LOOP = {"asyncio", "anyio"}


def awake(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What a coroutine does itself: not what it hands to a thread, and not what it waits for."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.Lambda):
            continue
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            # a coroutine's arguments are computed here
            waiting += [*node.value.args, *(word.value for word in node.value.keywords)]
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def blocks(function: ast.AsyncFunctionDef, tree: ast.Module) -> list[str]:
    """Calls that keep the event loop from others: of the database, the disk, and what computes."""
    computing = computing_names(tree)
    found = []
    for node in awake(function):
        if not isinstance(node, ast.Call):
            continue
        module = module_of(node)
        if module == "service" and called(node).islower() and called(node) not in LIGHT:
            found.append(f"service.{called(node)}")
        elif called(node) in ("read", "write") and "database" in ast.unparse(node.func):
            found.append(ast.unparse(node.func))
        elif called(node) in computing or (called(node) in BLOCKING and module not in ON_LOOP):
            found.append(called(node))
    return found


def coroutines(tree: ast.AST) -> Iterable[ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))


@pytest.mark.slow
def test_nobody_blocks_the_event_loop() -> None:
    told, seen = {}, 0
    for name, path in files("service").items():
        for function in coroutines(parsed(path)):
            seen += 1
            if calls := blocks(function, parsed(path)):
                told[f"{name}:{function.name}"] = calls
    assert seen > 30, "the rule sees no coroutines"
    assert told == {}


def test_blocking_is_seen() -> None:
    head = "from service.contracts.config import parse_config\nimport asyncio, time\n"
    for source, seen in (
        ("time.sleep(1)", True),
        ("await asyncio.sleep(1)", False),
        ("with app.database.read() as session:\n        pass", True),
        ("return service.get(app, tenant, job_id)", True),
        ("config = service.aimed_at(config, target)", True),
        ("return await app.reads.run(lambda: service.get(app, tenant, job_id))", False),
        ("return await service.receive(app, tenant, job_id)", False),
        ("await app.writes.run(parse_config(data))", True),
        ("parse_config(data)", True),
        ("JobCreate.model_validate(data)", True),
        ("path.read_bytes()", True),
    ):
        tree = ast.parse(f"{head}async def endpoint():\n    {source}")
        assert any(blocks(function, tree) for function in coroutines(tree)) is seen, source
