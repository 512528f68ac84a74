"""A scanner of other people looks at the hostile corpus: nothing that it calls critical is taken as it is by us.

QUANTMILL_TEST_MODELAUDIT names the executable of modelaudit (0.2.54), in an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.security.corpus.case import READY, Case
from tests.security.test_corpus import CASES

VARIABLE = "QUANTMILL_TEST_MODELAUDIT"
# Larger ones are bombs of many members, over which the scanner sits for many minutes; over this small one, too.
LARGEST_BYTES = 1 << 20
LEFT_OUT = {"zip-of-zips"}

pytestmark = pytest.mark.long


def laid_out(folder: Path) -> dict[str, Case]:
    """The cases that are plain files, by the name of their folder."""
    found = {}
    for number, case in enumerate(case for case in CASES if case.name not in LEFT_OUT):
        place = folder / f"{number:03}"
        (place / "in").mkdir(parents=True)
        case.lay_out(place / "in", Path("/dev/shm/canary-nowhere-canary-canary"))
        paths = [path for path in place.rglob("*") if not path.is_dir() or path.is_symlink()]
        plain = all(path.is_file() and not path.is_symlink() for path in paths)
        if plain and sum(path.stat().st_size for path in paths) < LARGEST_BYTES:
            found[place.name] = case
            continue
        for path in paths:
            path.unlink()
    return found


@pytest.mark.timeout(1800)
def test_what_another_scanner_calls_critical_is_refused_or_comes_to_nothing(tmp_path: Path) -> None:
    program = os.environ.get(VARIABLE)
    if program is None:
        pytest.skip(f"no modelaudit ({VARIABLE} is not set): nobody else has looked at the hostile corpus")
    corpus, answer = tmp_path / "corpus", tmp_path / "answer.json"
    cases = laid_out(corpus)
    options = ["--no-whitelist", "--no-cache", "--format", "json", "--output", str(answer)]
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1"}
    command, environment = [program, "scan", *options, str(corpus)], {**os.environ, **quiet}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert answer.exists(), done.stderr[-2000:]
    critical = defaultdict(list)
    for issue in json.loads(answer.read_text())["issues"]:
        place = re.match(rf"{re.escape(str(corpus))}/(\d+)/", issue.get("location") or "")
        if issue["severity"] == "critical" and place is not None:
            critical[cases[place[1]].name].append(issue["message"])
    refused = {case.name for case in cases.values() if case.code != READY}
    assert critical, "it found nothing at all: it has not looked"
    assert {name: said for name, said in critical.items() if name not in refused} == {}
