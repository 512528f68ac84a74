"""Draws one-line mutations of production code, spread over the rooms by their size: candidates for ``faults.json``.

    python -m tools.mutation.generate 200 > candidates.json

A person reads them and strikes those that change nothing that a user could see. The same seed draws the same ones.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.mutation.faults import ROOT, Fault, room_of

_SEED = 20261126
_COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
}
_COMPUTED = {ast.Add: (" + ", " - "), ast.Sub: (" - ", " + "), ast.Mult: (" * ", " / "), ast.Div: (" / ", " * ")}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
Change = tuple[str, int, int, str]


def changes(node: ast.AST, line: str) -> Iterator[Change]:
    """Kind, first and last column on the line, and the text that takes their place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        old, new = _COMPARED[type(node.ops[0])]
        yield from _between("comparison", line, node.left, node.comparators[0], old, new)
    elif isinstance(node, ast.BoolOp):
        old, new = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        yield from _between("condition", line, node.values[0], node.values[1], old, new)
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        old, new = _COMPUTED[type(node.op)]
        yield from _between("arithmetic", line, node.left, node.right, old, new)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "condition", node.col_offset, node.operand.col_offset, ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", node.col_offset, node.end_col_offset or 0, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", node.col_offset, node.end_col_offset or 0, str(node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        yield "name", node.func.col_offset, node.func.end_col_offset or 0, _NAMES[node.func.id]
    elif isinstance(node, ast.Return) and node.value is not None and not _is_nothing(node.value):
        yield "return", node.value.col_offset, node.end_col_offset or 0, "None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "statement", node.col_offset, node.end_col_offset or 0, "pass"
    elif isinstance(node, ast.If) and node.lineno == node.test.end_lineno:
        yield "branch", node.test.col_offset, node.test.end_col_offset or 0, "False"


def _between(kind: str, line: str, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Change]:
    begin, end = left.end_col_offset or 0, right.col_offset
    if left.end_lineno == right.lineno and line[begin:end].count(old) == 1:
        at = begin + line[begin:end].index(old)
        yield kind, at, at + len(old), new


def _is_nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def candidates(path: Path) -> list[Fault]:
    """Every mutation of a file's functions; nothing outside them, as it is run by whoever imports the file."""
    text = path.read_text()
    if not text.isascii():  # columns of the tree count bytes
        return []
    lines = text.splitlines()
    found = []
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (inner for function in functions for statement in function.body for inner in ast.walk(statement)):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not first or (first != last and not isinstance(node, ast.If)):
            continue
        line = lines[first - 1]
        for kind, begin, end, new in changes(node, line):
            changed = line[:begin] + new + line[end:]
            if changed != line and _compiles(lines, first, changed):
                name = str(path.relative_to(ROOT))
                found.append(Fault(name, line, lines[: first - 1].count(line), changed, kind))
    return list(dict.fromkeys(found))


def _compiles(lines: list[str], number: int, changed: str) -> bool:
    try:
        ast.parse("\n".join([*lines[: number - 1], changed, *lines[number:]]))
    except SyntaxError:
        return False
    return True


def draw(count: int) -> list[Fault]:
    """So many mutations: files are drawn by their number of lines, kinds of change alike within a file."""
    files = [path for top in ("service", "worker", "quantmill") for path in sorted((ROOT / top).rglob("*.py"))]
    sizes = [len(path.read_text().splitlines()) for path in files]
    chance = random.Random(_SEED)
    drawn: dict[Fault, None] = {}
    while len(drawn) < count:
        (path,) = chance.choices(files, sizes)
        found = candidates(path)
        if found:
            kind = chance.choice(sorted({fault.kind for fault in found}))
            drawn[chance.choice([fault for fault in found if fault.kind == kind])] = None
    return sorted(drawn, key=lambda fault: (room_of(fault.file), fault.file))


if __name__ == "__main__":
    json.dump([vars(fault) for fault in draw(int(sys.argv[1]))], sys.stdout, indent=1)
