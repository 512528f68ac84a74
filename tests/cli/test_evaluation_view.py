"""What a person sees of an evaluation."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from worker.commands.evaluation_view import print_evaluation

DIGEST = "0" * 64
GATE = [
    {"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 0.5, "holds": True},
    {"clause": "min_sqnr_db", "wanted": 20.0, "got": 12.5, "holds": False},
    {
        "clause": "max_latency_ratio",
        "wanted": 1.0,
        "got": 1.01,
        "holds": None,
        "why": "the runs are too few",
        "samples_needed": 4000,
    },
]


def interval(low: float, high: float) -> dict[str, Any]:
    return {"low": low, "high": high, "confidence": 0.95, "method": "wilson", "samples": 100}


def evaluation(**changes: Any) -> dict[str, Any]:
    told = {
        "verdict": "fail",
        "gate": GATE,
        "samples": 100,
        "model": {"size_bytes": 1024, "latency_ms": 1.0},
        "reference": {"size_bytes": 4096, "latency_ms": 2.0},
        "metrics": [
            {
                "name": "top1",
                "kind": "top_k",
                "unit": "%",
                "better": "higher",
                "value": 89.5,
                "reference_value": 90.0,
                "drop": 0.5,
                "drop_interval": interval(-0.1, 1.1),
                "p_value": 0.0311,
            }
        ],
        "manifest": {
            "engine_version": "1",
            "model_sha256": DIGEST,
            "evaluation_sha256": DIGEST,
            "evaluation_preprocessing": {},
            "evaluation": {},
            "versions": {},
            "threads": 1,
        },
    }
    return {**told, **changes}


def shown(result: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    print_evaluation(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(text: str) -> list[str]:
    return [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]


def test_the_change_and_each_condition_are_told() -> None:
    lines = rows(shown(evaluation()))
    assert "top1 (%) 90.00 89.50 -0.50 [-1.1, +0.1] points, p 0.031" in lines
    assert "size 4.0 KiB 1.0 KiB 4.00x smaller" in lines
    assert "latency 2.00 ms 1.00 ms 2.00x as fast" in lines
    at = lines.index("verdict fail")
    assert lines[at + 1 :] == [
        "holds: max_drop of top1 1, got 0.5",
        "BROKEN: min_sqnr_db 20, got 12.5",
        "UNDECIDED: max_latency_ratio 1, got 1.01",
        "the runs are too few; about 4000 samples would decide it",
    ]


@pytest.mark.parametrize("verdict", ["none", "pass"])
def test_without_a_reference_nothing_is_compared(verdict: str) -> None:
    text = shown(evaluation(reference=None, gate=[], verdict=verdict))
    assert "change" not in text
    assert rows(text)[-1] == f"verdict {verdict}"
