"""Tries every planted fault of ``faults.json`` against the tests, lane by lane, and says which lane finds it.

    python -m tools.mutation.run TREE --record RECORD --results RESULTS.jsonl [--part 0/2] [--lanes fast,suite,long]
    python -m tools.mutation.run --summary RESULTS.jsonl [BEFORE.jsonl]

TREE is a copy of the checkout that faults are planted in (``git clone . TREE``), RECORD a folder in which
``pytest -p tools.mutation.record`` has noted the functions that each test runs. For each fault the tests that run its
function are tried, the most specific first, until one fails: that ends it. What has a result already is not tried
again, so a round goes on where it was broken off; several parts may run at once, each in a tree of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tools.mutation.faults import Fault, read_faults, room_of
from tools.mutation.record import Record

# One lane after the other: what each adds to those before it.
LANES = {
    "fast": "fast",
    "suite": "not long and not fast",
    "long": "long or hypothesis",
    "all": "",
}
_SECONDS = {"fast": 40.0, "suite": 90.0, "long": 90.0, "all": 120.0}
_STUCK_SECONDS = 420
_MOST_TESTS = 300
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def chosen_tests(fault: Fault, text: str, record: Record) -> dict[str, float]:
    """Tests that run the fault's function and their seconds, the most specific first; of what is outside all functions,
    those that run anything of its file."""
    tests = record.tests_at(fault.file, text, fault.number(text))
    breadth = record.breadth
    ordered = sorted(tests, key=lambda test: (breadth[test] * (0.1 + record.seconds[test]), test))
    return {test: record.seconds[test] for test in ordered[:_MOST_TESTS]}


def try_lane(tree: Path, lane: str, tests: dict[str, float]) -> tuple[str, str]:
    """How a lane's tests end with what is planted, and the first that failed.

    Returns:
        killed, survived, or none if there was nothing to run; and what failed first.
    """
    files = sorted({test.split("::")[0] for test in tests})
    places = [file if (tree / file).exists() else str(Path(file).parent) for file in files]
    places = sorted({place for place in places if (tree / place).exists()})
    if not places:
        return "none", ""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as chosen:
        json.dump({"seconds": _SECONDS[lane], "tests": tests}, chosen)
        chosen.flush()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-n", "0", "-p", "tools.mutation.choose"]
        command += ["-p", "no:cacheprovider", "--timeout=120", "--tb=no", *places]
        command += ["-m", LANES[lane]] if LANES[lane] else []
        command += ["--hypothesis-profile=long"] if lane == "long" else []
        try:
            done = subprocess.run(
                command, cwd=tree, capture_output=True, text=True, timeout=_STUCK_SECONDS,
                env={**os.environ, "QUANTMILL_CHOSEN": chosen.name, "PYTHONPATH": str(tree)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "killed", "a test that does not end"
    if done.returncode == pytest.ExitCode.OK:
        return "survived", ""
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        return "none", ""
    if done.returncode == pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError(f"pytest was called wrongly, no fault was found by that: {done.stderr}")
    found = _FAILED.search(done.stdout)
    return "killed", found.group(1) if found else f"pytest ended with {done.returncode}"


def try_fault(tree: Path, fault: Fault, record: Record, lanes: list[str]) -> dict[str, object]:
    """Plant the fault, try the lanes in turn until one finds it, and take it out again."""
    path = tree / fault.file
    text = path.read_text()
    tests = chosen_tests(fault, text, record)
    begun = time.monotonic()
    path.write_text(fault.planted(text))
    # compiled files are told apart by seconds and size
    os.utime(path, (begun + 1e9, begun + 1e9))
    outcome, by, lane = "none", "", ""
    try:
        for lane in lanes:
            ended, by = try_lane(tree, lane, tests)
            outcome = outcome if ended == "none" else ended
            if ended == "killed":
                break
    finally:
        path.write_text(text)
        os.utime(path, (begun + 2e9, begun + 2e9))
    return {
        "fault": fault.name, "room": room_of(fault.file), "kind": fault.kind, "history": fault.history,
        "outcome": outcome, "lane": lane if outcome == "killed" else None, "by": by, "chosen": len(tests),
        "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip


def results_of(path: Path) -> dict[str, dict[str, object]]:
    """Results by fault."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["fault"]: entry for entry in map(json.loads, lines)}


def summary(results: dict[str, dict[str, object]], before: dict[str, dict[str, object]]) -> str:
    """Tables: found by lane, and by room; beside an older round, which of its findings are missing."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for name, entry in results.items():
        room = str(entry["room"])
        top = "/".join(room.split("/")[:2]) if room.startswith("worker/quantizer") else room.split("/")[0]
        for key in (top, "all", *(["as in history"] if entry["history"] else [])):
            rows[key]["faults"] += 1
            rows[key][str(entry["lane"]) if entry["outcome"] == "killed" else "left"] += 1
            rows[key]["before"] += name in before and before[name]["outcome"] == "killed"
    lines = ["| room | faults | found before | fast | + suite | + long | left |", "|---|---|---|---|---|---|---|"]
    for key in sorted(rows, key=lambda key: (key in ("all", "as in history"), key)):
        row = rows[key]
        fast = row["fast"]
        suite = fast + row["suite"]
        every = suite + row["long"] + row["all"]
        lines.append(
            f"| {key} | {row['faults']} | {row['before']} | {fast} | {suite} | {every} | {row['faults'] - every} |"
        )
    lost = [n for n, e in results.items() if n in before and before[n]["outcome"] == "killed" != e["outcome"]]
    late = [n for n, e in results.items() if n in before and before[n]["outcome"] == "killed" and e["lane"] == "long"]
    lines += ["", f"Found before and not now: {len(lost)}", *(f"- {name}" for name in lost)]
    lines += ["", f"Found by the long lane alone: {len(late)}", *(f"- {name}" for name in late)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path, help="a copy of the checkout, to plant faults in")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", help="faults of files that begin so")
    parser.add_argument("--lanes", default="fast,suite,long")
    parser.add_argument("--summary", nargs="+", type=Path)
    given = parser.parse_args()
    if given.summary:
        before = results_of(given.summary[1]) if len(given.summary) > 1 else {}
        print(summary(results_of(given.summary[0]), before))
        return
    record = Record(given.record)
    part, parts = map(int, given.part.split("/"))
    for fault in read_faults()[part::parts]:
        if fault.name in results_of(given.results) or not fault.file.startswith(given.only or ""):
            continue
        result = try_fault(given.tree.resolve(), fault, record, given.lanes.split(","))
        with given.results.open("a") as stream:
            stream.write(json.dumps(result) + "\n")
        print(result["outcome"], result["lane"], result["seconds"], fault.name, "|", result["by"], flush=True)


if __name__ == "__main__":
    main()
