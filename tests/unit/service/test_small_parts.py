"""Small parts: names of results, presets by words, facts for MLflow, pauses of deliveries, cores, commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from service import cores
from service.artifacts.naming import model_stem, named, recipe_name
from service.cli import register
from service.client.errors import shown
from service.client.mlflow_facts import MOST_PARAM_CHARS, MOST_PARAMS, key_of, params_of, stale_labels
from service.contracts.config import parse_config
from service.contracts.presets import PRESETS, RECOMMENDED
from service.contracts.runner import FILE_PATTERN
from service.db import Database, current_revision, head_revision
from service.egress.attempts import LONGEST_ASKED_SECONDS, parse_schedule, pause_seconds
from service.health import service as health
from service.jobs.outcome import NewArtifact
from service.presets.catalog import PresetNotFoundError, as_text, find, group_of, to_json
from service.process import is_loopback
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS


def artifact(kind: str, filename: str) -> NewArtifact:
    return NewArtifact(kind, filename, "application/octet-stream", "0" * 64, 1)


def test_the_recipe_is_the_preset_and_what_became_of_it() -> None:
    for settings, name in (
        ({}, "int8"),
        ({"preset": "float16_model"}, "float16_model"),
        ({"evaluation": {"gate": {"min_sqnr_db": 10}}, "seed": 3, "calibration_samples": 8}, "int8"),
        ({"weight": {"granularity": "per_tensor"}}, "int8-custom"),
        ({"target": "tensorrt"}, "int8-tensorrt"),
        ({"target": "tensorrt", "algorithms": []}, "int8-custom-tensorrt"),
    ):
        assert recipe_name(parse_config(settings)) == name
    for preset in PRESETS:
        name = recipe_name(parse_config({"preset": preset}))
        assert re.fullmatch(FILE_PATTERN, f"net.{name}.onnx") and "custom" not in name


def test_the_model_is_named_by_its_file() -> None:
    stems = {
        "mobilenet_v1_0.75_224.onnx": "mobilenet_v1_0.75_224", "net.ONNX": "net", "exported.pt2": "exported",
        "C:\\models\\my net.onnx": "my_net", "../../etc/passwd": "passwd", "Größe.onnx": "Groe",
        ".onnx": "model", "": "model", "網路.onnx": "model",
    }  # fmt: skip
    assert {file: model_stem(file) for file in stems} == stems


@given(st.text(max_size=300))
def test_any_file_name_gives_a_safe_one(file: str) -> None:
    done = named(artifact("model", "model.onnx"), file, parse_config({"preset": "int8"}))
    assert re.fullmatch(FILE_PATTERN, done.filename)


def test_only_model_and_report_are_renamed() -> None:
    config = parse_config({})
    assert named(artifact("report", "report.json"), "net.onnx", config).filename == "net.int8.report.json"
    other = artifact("sensitivity_json", "sensitivity.json")
    assert named(other, "net.onnx", config) == other


def test_every_preset_is_in_one_group_and_listed_with_its_words() -> None:
    groups = {name: group_of(preset) for name, preset in PRESETS.items()}
    assert set(groups.values()) == {"own", "mixed", "finetuned", "quark"}
    assert groups["int8"] == groups["w4a8"] == groups["int8_accurate"] == "own"
    assert (groups["a16w8_adaquant"], groups["bf16_mixed_bfp16_adaquant"]) == ("finetuned", "mixed")
    assert groups["a16w8"] == "quark"
    text = as_text(find(None), with_pending=True)
    assert text.index("Other presets of Quantmill:") < text.index("mixed precision:") < text.index("Not available:")
    for note in {note for preset in PRESETS.values() for note in preset.notes}:
        assert text.count(f"] {note}\n") <= 1
    short = as_text(find(None), whole=False)
    assert "int8" in short and "Other presets of Quantmill:" in short and "AMD Quark presets" not in short
    left_out = sum(name not in RECOMMENDED for name, group in groups.items() if group != "own")
    assert f"{left_out} more for AMD Quark: `quantmill presets --all`" in short
    for preset in PRESETS.values():
        described = RECOMMENDED.get(preset.name, preset.description)
        for word in (preset.name, described, *preset.aliases, *preset.quark_names, *preset.notes):
            assert word in text


def test_a_name_finds_one_and_words_all_that_have_every_one_of_them() -> None:
    for search in ("A16W8_ADAQUANT", "a16w8_adaquant"):
        assert [one.preset.name for one in find(search)] == ["a16w8_adaquant"]
    found = {one.preset.name for one in find("AMD npu")}
    assert {"npu_int8", "npu_int8_accurate"} <= found and "int8" not in found
    with pytest.raises(PresetNotFoundError):
        find("nothing of that kind")


def test_json_is_whole() -> None:
    items = json.loads(to_json(find("int8")))["items"]
    (item,) = items
    assert (item["name"], item["group"], item["default"]) == ("int8", "own", True)
    assert parse_config(item["config"]) == parse_config({"preset": "int8"})
    assert len(json.loads(to_json(find(None)))["items"]) == len(PRESETS)


def test_a_key_is_one_that_mlflow_takes() -> None:
    keys = {"weight.dtype": "weight.dtype", "top-1 of a/b": "top-1 of a/b", "größe@3": "gr__e_3", "a//b/../c": "a/c"}
    keys |= {"/../a": "a", "": "_"}
    assert {name: key_of(name) for name in keys} == keys


def test_params_are_the_fields_of_the_config_by_their_path() -> None:
    config = parse_config({"preset": "int8_accurate", "exclude": [{"node": "a"}, {"node": "b"}]})
    found, left_out = params_of(config.model_dump(mode="json"))
    assert left_out == 0
    assert found["preset"] == "int8_accurate"
    assert found["seed"] == str(config.seed)
    assert found["algorithms.0.method"] == config.algorithms[0].method
    assert found["exclude.1.node"] == "b"
    assert params_of({"a": [1, 2], "b": True, "c": None, "d": 0.5})[0] == {"a": "[1, 2]", "b": "true", "d": "0.5"}


def test_what_does_not_fit_is_left_out_whole_and_counted() -> None:
    found = params_of({"long": "x" * (MOST_PARAM_CHARS + 1), "k" * 251: 1, "ä": 1, "ö": 2, "fits": 1})
    assert found == ({"_": "1", "fits": "1"}, 3)
    many, left_out = params_of({"ranges": {f"t{number}": number for number in range(MOST_PARAMS + 7)}})
    assert (len(many), left_out) == (MOST_PARAMS, 7)


def test_an_address_is_told_without_what_is_secret_in_it() -> None:
    assert shown("https://me:word@host:8000/in?key=1#f") == "https://host:8000/in"


def test_labels_that_the_job_has_no_longer_are_known() -> None:
    there = ["quantmill.label.a", "quantmill.label.b", "mlflow.user", "quantmill.verdict"]
    assert stale_labels(there, {"quantmill.label.a": "1"}) == ["quantmill.label.b"]


SCHEDULE = (5.0, 30.0, 120.0)


def test_pauses_grow_and_end() -> None:
    for attempt, mean in enumerate(SCHEDULE, start=1):
        found = [pause_seconds(attempt, SCHEDULE, {}) or 0.0 for _ in range(200)]
        assert 0.8 * mean <= min(found) < max(found) <= 1.2 * mean
    assert pause_seconds(len(SCHEDULE) + 1, SCHEDULE, {"retry-after": "60"}) is None


def test_a_date_is_heeded_as_seconds_are() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3590 < (pause_seconds(1, SCHEDULE, {"retry-after": at}) or 0.0) <= 3600
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    assert (pause_seconds(1, SCHEDULE, {"retry-after": past}) or 0.0) <= 6


DATES = st.text("0123456789 :,+-GMTJanFebSunMon", max_size=40)


@example(asked="Mon, 1 Jan 99999999999999999999 00:00:00 GMT")
@given(asked=st.one_of(st.text(), DATES, st.integers().map(str), st.just("9" * 5000)))
def test_whatever_is_asked_for_is_bounded(asked: str) -> None:
    found = pause_seconds(1, SCHEDULE, {"retry-after": asked})
    assert found is not None
    assert 4.0 <= found <= LONGEST_ASKED_SECONDS


@pytest.mark.parametrize("text", ["5,soon", "5,-1", "5,,30", "nan", "inf", "0"])
def test_a_schedule_that_is_none_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValidationError, match=r"seconds|longer"):
        Settings(webhook_retry_seconds=text)


def test_a_schedule_of_ones_own() -> None:
    assert parse_schedule(Settings(webhook_retry_seconds=" 1, 2.5 ").webhook_retry_seconds) == (1.0, 2.5)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def counted(folder: Path) -> int:
    return cores.available_cores(root=folder / "fs", own=folder / "own")


@pytest.mark.usefixtures("eight_cores")
def test_quotas_of_version_2(tmp_path: Path) -> None:
    assert counted(tmp_path) == 8, "without control groups affinity counts"
    put(tmp_path / "own", "0::/system.slice/one.service\n")
    group = tmp_path / "fs/system.slice/one.service/cpu.max"
    for quota, expected in (("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)):
        put(group, f"{quota}\n")
        assert counted(tmp_path) == expected, quota
    put(group, "max 100000\n")
    put(tmp_path / "fs/system.slice/cpu.max", "300000 100000\n")
    assert counted(tmp_path) == 3, "the tightest of all groups around counts"


@pytest.mark.usefixtures("eight_cores")
def test_in_a_container_the_root_is_the_group(tmp_path: Path) -> None:
    put(tmp_path / "own", "0::/docker/0123\n")  # the host's path, which is not mounted here
    put(tmp_path / "fs/cpu.max", "200000 100000\n")
    assert counted(tmp_path) == 2


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("250000", 3), ("junk", 8)])
@pytest.mark.parametrize("group", ["docker/0123", ""])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, expected: int, group: str) -> None:
    put(tmp_path / "own", "12:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/\n")
    put(tmp_path / "fs/cpu,cpuacct" / group / "cpu.cfs_quota_us", f"{quota}\n")
    put(tmp_path / "fs/cpu,cpuacct" / group / "cpu.cfs_period_us", "100000\n")
    assert counted(tmp_path) == expected


def test_threads_of_a_job_are_a_share_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.settings.available_cores", lambda: 6)
    assert [Settings(data_dir=tmp_path, worker_slots=slots).threads for slots in (1, 2, 4, 9)] == [6, 3, 1, 1]
    assert Settings(data_dir=tmp_path, worker_slots=2, threads=5).threads == 5


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def test_migrate(app: typer.Typer, tmp_path: Path, sqlite_url: str) -> None:
    """What the migrations do is told elsewhere: here nothing is left to do."""
    head = head_revision()
    for folder, more, said in ((tmp_path, [], head), (tmp_path / "new", ["--revision", "base"], "empty")):
        done = CliRunner().invoke(app, ["migrate", "--data-dir", str(folder), *more])
        assert (done.exit_code, done.stdout.strip()) == (0, f"schema: {said}")
    database = Database(sqlite_url)
    assert current_revision(database) == head
    database.close()


def test_the_api_is_not_opened_to_all_without_a_key(app: typer.Typer, tmp_path: Path) -> None:
    host = "example.invalid"
    done = CliRunner().invoke(app, ["api", "--host", host, "--port", "0", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert host in done.stderr and "QUANTMILL_API_KEY" in done.stderr


def test_loopback() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "", "::", "10.0.0.1", "no.such.host.invalid"):
        assert not is_loopback(host), host


def test_a_look_that_hangs_is_told_of_and_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    looks, go_on, silent = [], threading.Event(), health.Check("disk", "failed", "no answer")

    def look() -> health.Check:
        looks.append(go_on.wait(PATIENCE_SECONDS))
        return health.Check("disk", "ok", "")

    async def probed() -> list[str]:
        probe = health._Probe("disk", look, silent)
        found = [(await probe.check()).outcome for _ in range(3)]
        go_on.set()
        return [*found, (await probe._task).outcome]

    assert asyncio.run(probed()) == ["failed", "failed", "failed", "ok"]
    assert looks == [True]
