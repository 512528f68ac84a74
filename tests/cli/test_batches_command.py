"""``quantmill batches``: a grid that workers really run, its summary, and how scripts are told of its end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import KEY, NOWHERE, Ask, Quantmill
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service


@pytest.fixture
def grid(uploaded: dict[str, str]) -> list[str]:
    return ["--model", uploaded["model"], "--calibration", uploaded["calibration"]]


def test_a_grid_from_the_request_to_the_summary(
    quantmill: Quantmill, service: Service, ask: Ask, grid: list[str], tmp_path: Path
) -> None:
    (tmp_path / "gated.yaml").write_text(
        "evaluation: {gate: {min_sqnr_db: 33}}\nweight: {reduce_range: true}\n"
    )  # 40 and 23 dB
    made = quantmill(
        "batches", "submit", *grid, "--preset", "int8", "--preset", "xint8", "--config", "gated.yaml", "--name", "grid",
        "--label", "build=7", "--wait", "--fail-on-gate", "--timeout", PATIENCE_SECONDS,
        "--server", service.url, "--key", KEY, code=3,
    )  # fmt: skip
    batch_id, _, rest = made.stdout.partition("\n")
    assert re.fullmatch(r"bat_\w{26}", batch_id)
    assert "2 (2 succeeded)" in rest
    assert made.stderr.count("job.succeeded") == 2
    found = json.loads(ask("batches", "show", batch_id, "--json"))
    assert (found["state"], found["counts"]["succeeded"], found["name"]) == ("succeeded", 2, "grid")
    assert [(m["preset"], m["config"]) for m in found["members"]] == [("int8", 0), ("xint8", 0)]
    assert all(m["size_bytes"] > 0 and m["seconds"] > 0 for m in found["members"])
    assert [best["member"] for best in found["best"]] == [0], "one that breaks its gate is no best"
    listed = json.loads(ask("batches", "list", "--name", "grid", "--json"))["items"]
    assert [item["id"] for item in listed] == [batch_id]
    assert batch_id in ask("batches", "list")
    shown = ask("batches", "show", batch_id).splitlines()
    assert max(map(len, shown)) <= 120
    rows = [line.split() for line in shown if " job_" in line]
    assert [row[0] for row in rows] == ["0", "1"], "each member is one line"
    assert all(row[1] == "succeeded" and row[3] in ("int8", "xint8") for row in rows)
    assert "2 (2 succeeded)" in ask("batches", "follow", batch_id)
    ask("batches", "follow", batch_id, "--fail-on-gate", code=3)
    ask("batches", "retry", batch_id, code=1)
    assert batch_id in ask("batches", "rm", batch_id)
    ask("batches", "show", batch_id, code=1)


def test_members_are_given_in_a_file_and_canceled(
    quantmill: Quantmill, service: Service, ask: Ask, uploaded: dict[str, str], tmp_path: Path
) -> None:
    one = {"model_id": uploaded["model"], "calibration_dataset_id": uploaded["calibration"]}
    (tmp_path / "members.json").write_text(json.dumps([{**one, "config": {"preset": "int8"}}, one]))
    both = ask("batches", "submit", "--members", "members.json", "--priority", -100, code=1)
    assert "[invalid-request]" in both, "what is of the grid is not passed over in silence"
    made = json.loads(ask("batches", "submit", "--members", "members.json", "--json"))
    assert (made["grid"], made["counts"]["total"]) == (None, 2)
    assert "canceled" in ask("batches", "cancel", made["id"])
    place = ("--server", service.url, "--key", KEY)
    ended = quantmill("batches", "follow", made["id"], "--timeout", PATIENCE_SECONDS, "--json", *place, code=1)
    assert json.loads(ended.stdout)["state"] in ("canceled", "succeeded")
    again = json.loads(ask("batches", "retry", made["id"], "--json"))
    assert 2 in [member["attempts"] for member in again["members"]]
    ask("batches", "cancel", made["id"])


def test_every_member_that_is_wrong_is_told(ask: Ask, grid: list[str]) -> None:
    refused = ask("batches", "submit", *grid, "--model", "nobody@3", "--preset", "int8", "--preset", "int9", code=1)
    assert "[batch-refused]" in refused
    assert "3 of 4 members are not valid: 1, 2, 3" in refused
    assert "/models/1" in refused
    assert "/presets/1" in refused
    assert "{" not in refused


@pytest.mark.parametrize(
    "arguments",
    [["submit"], ["submit", "--preset", "int8"], ["submit", "--model", "m", "--timeout", "3"]],
    ids=["nothing", "no-model", "no-wait"],
)
def test_what_makes_no_sense_is_usage(quantmill: Quantmill, arguments: list[str]) -> None:
    assert quantmill("batches", *arguments, "--server", NOWHERE).returncode == 2
