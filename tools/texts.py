"""Every text that a user sees, by kind: pages, command line, errors, hints, contracts, reports, documents.

usage: python -m tools.texts [--kind KIND ...] [--since COMMIT] [--count] [PATH ...]

Prints one text per line: kind, place, text; what is filled in at run time reads ``{}``. ``--count`` prints how many
texts there are by kind; ``--since`` prints only texts that the commit did not have, or counts them.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = ("service", "worker", "quantmill")
KINDS = ("error", "hint", "help", "contract", "route", "text", "page", "script", "document")

# A word, a space, a word: identifiers, formats and media types are not texts.
_SENTENCE = re.compile(r"[A-Za-z]{2}[\w')\"}.,:;%-]* [\w'(\"{-]+")
_CONTRACT = {"description", "examples"}
_LOGGERS = {"debug", "info", "warning", "error", "exception", "log"}


class Text(NamedTuple):
    """A text and where it is."""

    kind: str
    path: str
    line: int
    text: str


def texts(root: Path = ROOT) -> Iterator[Text]:
    """All texts under ``root``, a checkout of the project."""
    for source in SOURCES:
        for path in sorted((root / source).rglob("*.py")):
            yield from _of_module(path, str(path.relative_to(root)))
    for path in sorted((root / "service").rglob("*.jinja")):
        yield from _of_template(path.read_text(), str(path.relative_to(root)))
    for path in sorted((root / "service").rglob("*.js")):
        yield from _of_script(path.read_text(), str(path.relative_to(root)))
    for path in (root / "README.md", root / "SECURITY.md", *sorted((root / "docs").rglob("*.md"))):
        yield from _of_document(path.read_text(), str(path.relative_to(root)))


def _of_module(path: Path, name: str) -> Iterator[Text]:
    finder = _Finder(name)
    finder.visit(ast.parse(path.read_text()))
    yield from finder.found


class _Finder(ast.NodeVisitor):
    """Finds the texts of one module; what is said to readers of the code or of the log alone is left out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[Text] = []
        self._kinds = ["text"]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
        text = ast.get_docstring(node)
        if text and (".command" in decorators or ".callback" in decorators):
            self._add("help", node.body[0], text)
        elif text and re.search(r"\.(get|post|put|patch|delete|head)\(", decorators):
            self._add("route", node.body[0], text)
        self._without_docstring(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        text = ast.get_docstring(node)
        if text and "/contracts/" in self.name:
            self._add("contract", node.body[0], text)
        self._without_docstring(node)

    def visit_Module(self, node: ast.Module) -> None:
        self._without_docstring(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # else a docstring, or one behind a field
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func).rpartition(".")[2]
        if (called in _LOGGERS and isinstance(node.func, ast.Attribute)) or called in {"compile", "text", "getLogger"}:
            return
        kind = "error" if called.endswith(("Error", "Problem")) else self._kinds[-1]
        for argument in node.args:
            self._within(kind, argument)
        for keyword in node.keywords:
            name = keyword.arg or ""
            inner = name if name in {"hint", "help"} else "contract" if name in _CONTRACT else kind
            self._within("route" if inner == "contract" and self.name.endswith("router.py") else inner, keyword.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
        self._add(self._kinds[-1], node, "".join(str(part) for part in parts))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add(self._kinds[-1], node, node.value)

    def _within(self, kind: str, node: ast.AST) -> None:
        self._kinds.append(kind)
        self.visit(node)
        self._kinds.pop()

    def _without_docstring(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> None:
        for child in ast.iter_child_nodes(node):
            self.visit(child)

    def _add(self, kind: str, node: ast.AST, text: str) -> None:
        plain = " ".join(text.split())
        if _SENTENCE.search(plain):
            self.found.append(Text(kind, self.name, getattr(node, "lineno", 0), plain))


def _of_template(source: str, name: str) -> Iterator[Text]:
    blank = re.sub(r"\{#.*?#\}", _lines, source, flags=re.S)
    blank = re.sub(r"<(style|script|svg)\b.*?</\1>", _lines, blank, flags=re.S)
    for said in re.finditer(r'(?:"([^"{}%<>]*)"|\'([^\'{}%<>]*)\')', blank):  # labels given to macros, attributes
        yield from _template_text(name, blank, said.start(), said[1] or said[2] or "", r"[A-Z][\w'-]+ [\w'(-]+")
    plain = re.sub(r"\{%.*?%\}", _marks, blank, flags=re.S)
    plain = re.sub(r"\{\{.*?\}\}", lambda match: "{}" + _lines(match), plain, flags=re.S)
    for said in re.finditer(r">([^<>]+)<", plain):
        yield from _template_text(name, plain, said.start(1), said[1], r"[A-Za-z]{2}")


def _template_text(name: str, source: str, start: int, text: str, pattern: str) -> Iterator[Text]:
    said = unescape(" ".join(text.replace("\0", " ").split()))
    if re.search(pattern, said):
        yield Text("page", name, source.count("\n", 0, start) + 1, said)


def _lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _marks(match: re.Match[str]) -> str:
    return "\0" + _lines(match)


def _of_script(source: str, name: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("//"):
            continue
        for said in re.finditer(r'"([^"]+)"|\'([^\']+)\'|`([^`]+)`', line):
            text = next(part for part in said.groups() if part)
            if re.search(r"[A-Za-z]{2,} [a-z]{2,}", text):
                yield Text("script", name, number, re.sub(r"\$\{.*?\}", "{}", text))


def _of_document(source: str, name: str) -> Iterator[Text]:
    blank = re.sub(r"^```.*?^```", _lines, source, flags=re.S | re.M)
    for number, line in enumerate(blank.splitlines(), 1):
        if re.search(r"[A-Za-z]{2}", line) and not re.fullmatch(r"[|:\- ]+", line):
            yield Text("document", name, number, line.strip())


def texts_at(commit: str) -> set[tuple[str, str]]:
    """Kind and text of all texts of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        return {(each.kind, each.text) for each in texts(Path(folder))}


def main(arguments: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.texts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="only texts of files whose path begins so")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--count", action="store_true")
    asked = parser.parse_args(arguments)
    before = texts_at(asked.since) if asked.since else set()
    chosen = [
        each
        for each in texts()
        if (not asked.kind or each.kind in asked.kind)
        and (not asked.paths or each.path.startswith(tuple(asked.paths)))
        and (each.kind, each.text) not in before
    ]
    if not asked.count:
        sys.stdout.writelines(f"{each.kind}\t{each.path}:{each.line}\t{each.text}\n" for each in chosen)
        return
    counts = Counter(each.kind for each in chosen)
    sys.stdout.writelines(f"{kind:10} {counts[kind]:6}\n" for kind in KINDS if counts[kind])
    sys.stdout.write(f"{'all':10} {sum(counts.values()):6}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
