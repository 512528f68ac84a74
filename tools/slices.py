"""The slices of the long lane of tests: which a change needs, which CI's turn is, and what is in one.

python -m tools.slices [COMMIT]     what the changes since the commit need (default: since origin/main)
python -m tools.slices --turn       the one that CI runs for this commit: they take turns by the number of commits
python -m tools.slices --tests NAME paths for pytest; of all slices without a name
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Slice:
    """A part of the long lane.

    Args:
        tests: folders and files of tests.
        covers: beginnings of the paths of what they test.
    """

    tests: tuple[str, ...]
    covers: tuple[str, ...]

    def is_needed_by(self, path: str) -> bool:
        """Whether a change of this file may be seen by the slice."""
        return path.startswith((*self.covers, *self.tests))


def read_slices() -> dict[str, Slice]:
    """Those of tests/slices.toml, in its order."""
    told = tomllib.loads((ROOT / "tests" / "slices.toml").read_text())
    return {name: Slice(tuple(entry["tests"]), tuple(entry["covers"])) for name, entry in told.items()}


def slice_of(test: str, slices: dict[str, Slice]) -> str | None:
    """The slice that a test file is in: that of the longest beginning of its path."""
    found = [(len(start), name) for name, part in slices.items() for start in part.tests if test.startswith(start)]
    return max(found)[1] if found else None


def tests_of(name: str, slices: dict[str, Slice]) -> list[str]:
    """The test files of a slice."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return [file for file in files if slice_of(file, slices) == name]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}\nname a commit: python -m tools.slices COMMIT")
    return done.stdout.strip()


def main(words: list[str]) -> None:
    slices = read_slices()
    if words[:1] == ["--turn"]:
        print(list(slices)[int(_git("rev-list", "--count", "HEAD")) % len(slices)])
    elif words[:1] == ["--tests"]:
        print(*(file for name in words[1:] or slices for file in tests_of(name, slices)))
    else:
        since = words[0] if words else _git("merge-base", "HEAD", "origin/main")
        changed = _git("diff", "--name-only", since).splitlines()
        print(*(name for name, part in slices.items() if any(map(part.is_needed_by, changed))), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
