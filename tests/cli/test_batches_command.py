"""``quantmill batches``: a grid that workers really run, its summary, and how scripts are told of its end."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import KEY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service


@pytest.fixture
def batches(quantmill: Any, service: Service) -> Any:
    """Runs ``quantmill batches ARGUMENTS`` on the service."""

    def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = quantmill("batches", *arguments, "--server", service.url, "--key", KEY)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def pushed(service: Service, tiny: Tiny) -> dict[str, str]:
    return service.upload(tiny)


def grid(pushed: dict[str, str]) -> list[str]:
    return ["--model", pushed["model"], "--calibration", pushed["calibration"]]


def test_a_grid_from_the_request_to_the_summary(batches: Any, pushed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "seeded.yaml").write_text("seed: 7\n")
    (tmp_path / "plain.json").write_text("{}")
    made = batches(
        "submit", *grid(pushed), "--preset", "int8", "--preset", "xint8", "--config", tmp_path / "plain.json",
        "--config", tmp_path / "seeded.yaml", "--name", "grid", "--label", "build=7", "--wait",
        "--timeout", PATIENCE_SECONDS,
    )  # fmt: skip
    batch_id, _, rest = made.stdout.partition("\n")
    assert re.fullmatch(r"bat_\w{26}", batch_id)
    assert "4 (4 succeeded)" in rest
    assert made.stderr.count("job.succeeded") == 4
    found = json.loads(batches("show", batch_id, "--json").stdout)
    assert (found["state"], found["counts"]["succeeded"], found["name"]) == ("succeeded", 4, "grid")
    assert [(m["preset"], m["config"]) for m in found["members"]] == [
        ("int8", 0), ("int8", 1), ("xint8", 0), ("xint8", 1),
    ]  # fmt: skip
    assert all(m["size_bytes"] > 0 and m["seconds"] > 0 for m in found["members"])
    (best,) = found["best"]
    drops = [m["figures"]["sqnr_db"] for m in found["members"]]
    assert best["metric"] is not None or found["members"][best["member"]]["figures"]["sqnr_db"] == max(drops)
    listed = json.loads(batches("list", "--name", "grid", "--json").stdout)["items"]
    assert [item["id"] for item in listed] == [batch_id]
    assert batch_id in batches("list").stdout
    shown = batches("show", batch_id).stdout.splitlines()
    assert max(map(len, shown)) <= 120
    rows = [line.split() for line in shown if "  job_" in line]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"], "each member is one line"
    assert all(row[1] == "succeeded" and row[3] in ("int8", "xint8") for row in rows)
    batches("retry", batch_id, code=1)
    assert batch_id in batches("rm", batch_id).stdout
    batches("show", batch_id, code=1)


def test_scripts_are_told_by_exit_codes(batches: Any, pushed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "gated.json").write_text(json.dumps({"evaluation": {"gate": {"min_sqnr_db": 200}}}))
    gated = [*grid(pushed), "--preset", "int8", "--config", tmp_path / "gated.json", "--wait", "--quiet"]
    batches("submit", *gated)
    batches("submit", *gated, "--fail-on-gate", code=3)
    one = {"model_id": pushed["model"], "calibration_dataset_id": pushed["calibration"]}
    (tmp_path / "members.json").write_text(json.dumps([{**one, "config": {"preset": "int8"}}, one]))
    both = batches("submit", "--members", tmp_path / "members.json", "--priority", -100, code=1)
    assert "[invalid-request]" in both.stderr, "what is of the grid is not passed over in silence"
    made = json.loads(batches("submit", "--members", tmp_path / "members.json", "--json").stdout)
    assert (made["grid"], made["counts"]["total"]) == (None, 2)
    assert "canceled" in batches("cancel", made["id"]).stdout
    ended = batches("follow", made["id"], "--timeout", PATIENCE_SECONDS, "--json", code=1)
    assert json.loads(ended.stdout)["state"] in ("canceled", "succeeded")


def test_every_member_that_is_wrong_is_told(batches: Any, pushed: dict[str, str]) -> None:
    refused = batches("submit", *grid(pushed), "--model", "nobody@3", "--preset", "int8", "--preset", "int9", code=1)
    assert "[batch-refused]" in refused.stderr
    assert "3 of 4 members cannot be run: 1, 2, 3" in refused.stderr
    assert "/models/1" in refused.stderr
    assert "/presets/1" in refused.stderr
    assert "{" not in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [["submit"], ["submit", "--preset", "int8"], ["submit", "--model", "m", "--timeout", "3"]],
    ids=["nothing", "no-model", "no-wait"],
)
def test_what_makes_no_sense_is_usage(batches: Any, arguments: list[str]) -> None:
    batches(*arguments, code=2)
