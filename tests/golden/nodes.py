"""What becomes of a sample of ONNX's own tests of operators, case by case; ``--write`` keeps it.

python -m tests.golden.nodes [--write]

Which cases there are is told by onnx, and which of them the runtime takes by onnxruntime: the table holds for their
versions alone.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from tests.golden.table import libraries
from tests.support.node_cases import PRESETS, NodeCase, node_cases, outcome, sample

TABLE = Path(__file__).with_name("nodes.json")
RENEW = "where that is meant to be so: python -m tests.golden.nodes --write"
_LIBRARIES = ("onnx", "onnxruntime")
RUNS = "runs"

Outcomes = dict[str, dict[str, str]]  # by name of the case, by preset


@dataclass(frozen=True)
class NodeTable:
    """What ``nodes.json`` holds.

    Attributes:
        libraries: versions that it holds for.
        others: of the cases that do not run under all presets: the outcome, or where they differ that of each preset.
    """

    libraries: dict[str, str] = field(default_factory=dict)
    others: dict[str, str | dict[str, str]] = field(default_factory=dict)

    @property
    def holds_here(self) -> bool:
        """True where the libraries are those that it was made with."""
        return self.libraries == _versions()

    def of(self, name: str) -> dict[str, str]:
        """The outcomes of a case by preset."""
        found = self.others.get(name, RUNS)
        return dict.fromkeys(PRESETS, found) if isinstance(found, str) else found


def table_of(found: Outcomes) -> NodeTable:
    """The table that holds these outcomes."""
    others: dict[str, str | dict[str, str]] = {}
    for name, outcomes in found.items():
        words = set(outcomes.values())
        if words != {RUNS}:
            others[name] = outcomes if len(words) > 1 else words.pop()
    return NodeTable(_versions(), dict(sorted(others.items())))


def outcomes_of(cases: Iterable[NodeCase]) -> tuple[Outcomes, list[str]]:
    """The outcomes of cases under all presets, and the failures in full."""
    found: Outcomes = {}
    failures = []
    for case in cases:
        results = {preset: outcome(case, preset) for preset in PRESETS}
        found[case.name] = {preset: str(result) for preset, result in results.items()}
        failures += [
            f"{case.name}, {preset}: {result.why}: {result.detail}"
            for preset, result in results.items()
            if result.kind == "failed"
        ]
    return found, failures


def read() -> NodeTable:
    """The kept table; empty if there is none yet."""
    return NodeTable(**json.loads(TABLE.read_text())) if TABLE.exists() else NodeTable()


def differences(found: Mapping[str, Mapping[str, str]], kept: NodeTable) -> list[str]:
    """Cases that came out otherwise than the table has it, in words."""
    return [
        f"{name}, {preset}: {kept.of(name)[preset]} became {words}"
        for name, outcomes in found.items()
        for preset, words in outcomes.items()
        if words != kept.of(name)[preset]
    ]


def _versions() -> dict[str, str]:
    found = libraries()
    return {name: found[name] for name in _LIBRARIES}


def main(words: list[str]) -> int:
    found, failures = outcomes_of(sample(node_cases()))
    changes, made = differences(found, read()), table_of(found)
    print("\n".join([*failures, *changes, f"{len(made.others)} of {len(found)} cases do not run under all presets"]))
    if "--write" in words:
        TABLE.write_text(json.dumps(asdict(made), indent=1) + "\n")
    return int(bool(failures) or (bool(changes) and "--write" not in words))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of libraries, on models that are meant to be odd
    sys.exit(main(sys.argv[1:]))
