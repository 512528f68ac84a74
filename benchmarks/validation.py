"""What hostile requests cost: CPU time in which a body is read, validated and refused, or accepted.

    python -m benchmarks.validation [--repeats 3]

Prints a table in Markdown: the size of each body, and the least CPU milliseconds of a few runs, in one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from service import bodies
from service.contracts.compatibility import check_selected
from service.contracts.errors import QuantmillError
from service.jobs.schemas import JobCreate
from tests.security.test_requests import HOSTILE, nodes
from tests.support.front import model_summary

IDS = {"model_id": "mdl_x", "calibration_dataset_id": "dst_x"}
# Within the bounds: the largest that is accepted, and then checked against the names of a model.
ACCEPTED = {
    "500 by 500 selectors, all wrong, against 5,000 nodes": {"include": nodes(500, "a"), "exclude": nodes(500, "b")},
    "100 regular expressions against 5,000 nodes": {"include": [{"regex": f"n{number}.*"} for number in range(100)]},
}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args(arguments).repeats
    print("| config | body, KB | CPU, ms | answer |\n|---|---|---|---|")
    for name, config in HOSTILE.items():
        data = json.dumps({**IDS, "config": config}).encode()
        print(_row(name, data, lambda data=data: bodies._record(JobCreate, data), repeats))
    model = model_summary(
        node_names=tuple(f"n{number}" for number in range(5000)), node_count=5000, prepared_op_types=()
    )
    for name, config in ACCEPTED.items():
        data = json.dumps({**IDS, "config": config}).encode()

        def check(data: bytes = data) -> None:
            body = bodies._record(JobCreate, data)
            assert isinstance(body, JobCreate)
            check_selected(body.config, model)

        print(_row(name, data, check, repeats))
    return 0


def _row(name: str, data: bytes, action: Callable[[], object], repeats: int) -> str:
    best, answer = float("inf"), ""
    for _ in range(repeats):
        begin = time.process_time()
        try:
            action()
            answer = "accepted"
        except (bodies.InvalidBodyError, QuantmillError) as error:
            problems = error.problems if isinstance(error, bodies.InvalidBodyError) else error.errors
            answer = f"422, {len(problems)} problems"
        best = min(best, time.process_time() - begin)
    return f"| {name} | {len(data) / 1000:,.0f} | {1000 * best:,.1f} | {answer} |"


if __name__ == "__main__":
    raise SystemExit(main())
