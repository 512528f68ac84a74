"""How large the product is: lines, files, long argument lists, shared names. Of this tree, or of a revision beside it.

python -m tools.size [REVISION ...]    one column for each revision, the last for the working tree
python -m tools.size --list MEASURE    what a measure counts: short, long, arguments, names, words
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCTION, ENGINE = ("service", "worker", "quantmill"), "worker/quantizer"
# Files shorter than this are seldom worth a reader's step; longer than that they hold more than one thing.
SHORT_LINES, LONG_LINES = 40, 450
MOST_ARGUMENTS = 8
# Words of our own for what the field has a name for; what replaced them is in docs/glossary.md and the code. Plain
# English with them is not sought (what turns something into another thing, a Gather's lookups, SQLite's journal), nor
# the API's field.
OLD_WORDS = (
    "company", "deafness", "tether", "nouns", "planes", "patience", "desk", "letterbox", "seams", "reducer", "halfs",
    "round_in_turn", "shelf", "skeleton(?!_model_id)", "bench",
)  # fmt: skip
LISTED = ("short", "long", "arguments", "names", "words")


@dataclass(frozen=True)
class Tree:
    """Sources of the product and its tests, by path."""

    sources: dict[str, str]

    @cached_property
    def production(self) -> dict[str, str]:
        """What is installed."""
        return {path: text for path, text in self.sources.items() if path.split("/")[0] in PRODUCTION}

    @cached_property
    def parsed(self) -> dict[str, ast.Module]:
        """Syntax trees of what is installed."""
        return {path: ast.parse(text) for path, text in self.production.items()}

    def within(self, room: str) -> dict[str, str]:
        """Sources below a folder."""
        return {path: text for path, text in self.sources.items() if path.startswith(room + "/")}

    def short(self) -> list[str]:
        """Files of a few lines."""
        return [path for path, text in self.production.items() if _lines(text) < SHORT_LINES]

    def long(self) -> list[str]:
        """Files of too many."""
        return [path for path, text in self.production.items() if _lines(text) > LONG_LINES]

    def arguments(self) -> list[str]:
        """Functions that take more arguments than a reader keeps in mind; self and cls do not count."""
        return [
            f"{path}:{node.lineno} {node.name} {count}"
            for path, tree in self.parsed.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (count := _arguments(node)) > MOST_ARGUMENTS
        ]

    def names(self) -> list[str]:
        """Names of classes that stand in more than one file."""
        places = defaultdict(set)
        for path, tree in self.parsed.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].add(path)
        return [f"{name}: {', '.join(sorted(found))}" for name, found in sorted(places.items()) if len(found) > 1]

    def words(self) -> list[str]:
        """Lines that have an old word, in names as well."""
        sought = re.compile(rf"(?<![a-z])(?:{'|'.join(OLD_WORDS)})(?![a-z])", re.IGNORECASE)
        return [
            f"{path}:{number} {line.strip()}"
            for path, text in self.production.items()
            for number, line in enumerate(text.splitlines(), 1)
            if sought.search(line)
        ]

    def figures(self) -> Iterator[tuple[str, str]]:
        """Rows of the table: what is counted, and how much there is."""
        engine, tests = self.within(ENGINE), self.within("tests")
        yield "production lines", f"{_total(self.production):,}"
        yield "production files", f"{len(self.production):,}"
        yield "engine: lines / files", f"{_total(engine):,} / {len(engine):,}"
        yield "test lines", f"{_total(tests):,}"
        yield f"files under {SHORT_LINES} lines", f"{len(self.short()):,}"
        yield f"files over {LONG_LINES} lines", f"{len(self.long()):,}"
        yield f"functions over {MOST_ARGUMENTS} arguments", f"{len(self.arguments()):,}"
        yield "class names in several files", f"{len(self.names()):,}"
        yield "lines with old words", f"{len(self.words()):,}"


def _lines(text: str) -> int:
    return len(text.splitlines())


def _total(sources: dict[str, str]) -> int:
    return sum(map(_lines, sources.values()))


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def working_tree() -> Tree:
    """What git would commit of this folder."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return Tree({path: (ROOT / path).read_text() for path in listed if (ROOT / path).exists()})


def revision(name: str) -> Tree:
    """What a commit holds."""
    archived = subprocess.run(["git", "archive", name], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        members = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(".py")]
        return Tree({member.name: _content(archive, member) for member in members})


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    found = archive.extractfile(member)
    if found is None:
        raise ValueError(f"{member.name} is no file of the archive")
    return found.read().decode()


def main() -> None:
    """Print the table, or what one of its rows counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    parser.add_argument("--list", choices=LISTED, dest="listed", help="print what a measure counts in the working tree")
    asked = parser.parse_args()
    here = working_tree()
    if asked.listed:
        print("\n".join(getattr(here, asked.listed)()))
        return
    columns = [dict(revision(name).figures()) for name in asked.revisions] + [dict(here.figures())]
    print("| |", " | ".join([*asked.revisions, "now"]), "|")
    print("|---|" + "---|" * len(columns))
    for measure in columns[-1]:
        print(f"| {measure} |", " | ".join(column[measure] for column in columns), "|")


if __name__ == "__main__":
    main()
