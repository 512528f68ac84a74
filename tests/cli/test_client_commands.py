"""``models push``, ``datasets push``, ``jobs submit|fetch``, ``report JOB``, and what all commands share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import onnx
import pytest
from safetensors.numpy import load_file

from service.contracts.exits import EXITS_BY_CODE, GATE_EXITS, ExitCode
from service.contracts.report import Report
from tests.cli.conftest import KEY, ROOT
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny, make_model
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service


@pytest.fixture
def there(service: Service) -> dict[str, str]:
    """The variables that name the service."""
    return {"QUANTMILL_SERVER": service.url, "QUANTMILL_API_KEY": KEY}


@pytest.fixture(scope="module")
def pushed(service: Service, tiny: Tiny) -> dict[str, str]:
    return service.upload(tiny)


def test_from_files_to_a_report_without_naming_the_service_again(quantmill, there, tiny: Tiny, tmp_path: Path) -> None:
    model = quantmill("models", "push", tiny.model, "--name", "tiny", **there)
    assert model.returncode == 0, model.stderr
    assert re.fullmatch(r"mdl_\w+\n", model.stdout)
    data = quantmill("datasets", "push", tiny.calibration, "--json", **there)
    assert json.loads(data.stdout)["status"] == "ready"
    done = quantmill(
        "jobs", "submit", "--model", model.stdout.strip(), "--calibration", json.loads(data.stdout)["id"],
        "--preset", "int8", "--name", "nightly", "--label", "build=7", "--label", "branch=a=b", "--priority", 3,
        "--wait", "--timeout", PATIENCE_SECONDS, **there,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job_id, _, rest = done.stdout.partition("\n")
    assert "verdict" in rest
    shown = json.loads(quantmill("jobs", "show", job_id, "--json", **there).stdout)
    assert (shown["name"], shown["labels"], shown["priority"]) == ("nightly", {"build": "7", "branch": "a=b"}, 3)
    assert shown["state"] == "succeeded"

    fetched = quantmill(
        "jobs", "fetch", job_id, "--output", "q.onnx", "--report", "r.json", "--html", "r.html",
        "--extra-dir", "more", "--safetensors", "w.safetensors", **there,
    )  # fmt: skip
    assert fetched.returncode == 0, fetched.stderr
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert (tmp_path / "q.onnx").stat().st_size == report.quantized.size_bytes
    weights = {tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert set(load_file(tmp_path / "w.safetensors")) == weights
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    again = quantmill("report", job_id, "--json", "--html", "again.html", **there)
    assert again.returncode == 0, again.stderr
    assert Report.model_validate_json(again.stdout.rpartition("}")[0] + "}") == report
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "r.html").read_bytes()
    printed = quantmill("report", "r.json")
    assert "verdict" in printed.stdout


def test_external_data_and_new_weights_are_pushed(quantmill, there, service: Service, tmp_path: Path) -> None:
    make_model(tmp_path / "net.onnx", external="net.data")
    done = quantmill("models", "push", "net.onnx", "--no-wait", "--json", **there)
    assert {file["path"] for file in json.loads(done.stdout)["files"]} == {"net.onnx", "net.data"}
    (tmp_path / "net.data").unlink()
    missing = quantmill("models", "push", "net.onnx", **there)
    assert missing.returncode == 1
    assert "error[external-data]" in missing.stderr


def test_a_rejected_model_is_an_error(quantmill, there, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    done = quantmill("models", "push", "net.onnx", **there)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error[not-onnx]" in done.stderr


def submit(pushed: dict[str, str]) -> list[str]:
    return [
        "jobs", "submit", "--model", pushed["model"], "--calibration", pushed["calibration"],
        "--evaluation", pushed["evaluation"],
    ]  # fmt: skip


def test_a_dry_run_tells_what_a_job_would_take_and_submits_nothing(quantmill, there, pushed) -> None:
    count = ("jobs", "list", "--limit", 100, "--json")
    before = json.loads(quantmill(*count, **there).stdout)
    told = quantmill(*submit(pushed), "--preset", "int8_accurate", "--dry-run", **there)
    assert told.returncode == 0, told.stderr
    assert re.search(
        r"^estimate +about \S+ \w+ \(.+ to .+\), .+ of memory, a model of .+, done about ", told.stdout, re.M
    )
    found = json.loads(quantmill(*submit(pushed), "--dry-run", "--json", **there).stdout)
    assert found["estimate"]["basis"] in ("timed", "history")
    assert found["estimated_finish_at"] is not None
    assert json.loads(quantmill(*count, **there).stdout) == before


def test_quiet_and_json_say_no_more_than_that(quantmill, there, pushed) -> None:
    quiet = quantmill(*submit(pushed), "--wait", "--quiet", **there)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert re.fullmatch(r"job_\w+\n", quiet.stdout)
    told = quantmill(*submit(pushed), "--wait", "--json", "-q", **there)
    assert (json.loads(told.stdout)["state"], told.stderr) == ("succeeded", "")
    followed = quantmill("jobs", "follow", quiet.stdout.strip(), "--quiet", **there)
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, "", "")


def test_the_same_word_makes_no_second_job(quantmill, there, pushed) -> None:
    first, second = (quantmill(*submit(pushed), "--idempotency-key", "build-7", **there).stdout for _ in range(2))
    assert first == second != ""


def test_a_failed_gate_has_a_code_of_its_own(quantmill, there, pushed, tmp_path: Path) -> None:
    (tmp_path / "hard.json").write_text(json.dumps({"evaluation": {"gate": {"min_sqnr_db": 200}}}))
    done = quantmill(*submit(pushed), "--config", "hard.json", "--wait", "--fail-on-gate", **there)
    assert done.returncode == ExitCode.GATE_FAILED == 3
    job_id = done.stdout.partition("\n")[0]
    assert quantmill("jobs", "follow", job_id, "--fail-on-gate", **there).returncode == ExitCode.GATE_FAILED
    assert quantmill("jobs", "follow", job_id, **there).returncode == ExitCode.DONE


def test_no_patience_has_one_too(quantmill, there, pushed, service: Service, tmp_path: Path) -> None:
    (tmp_path / "slow.json").write_text(json.dumps({"evaluation": {"latency_runs": 1000, "layer_samples": 1024}}))
    done = quantmill(*submit(pushed), "--config", "slow.json", "--wait", "--timeout", 0, **there)
    assert done.returncode == ExitCode.WAIT_TIMEOUT == 5
    assert "error[wait-timeout]" in done.stderr
    assert service.client.cancel(done.stdout.strip()).id == done.stdout.strip()


@pytest.mark.parametrize(
    "words",
    [
        ["--label", "novalue"],
        ["--label", "a=1", "--label", "a=2"],
        ["--timeout", "3"],
        ["--fail-on-gate"],
        ["--dry-run", "--wait"],
        ["--preset", "int8", "--config", "c.json"],
    ],
)
def test_what_is_misspelled_is_told_before_anything_is_sent(quantmill, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "c.json").write_text("{}")
    done = quantmill("jobs", "submit", "--model", "mdl_x", "--server", "http://127.0.0.1:1", *words)
    assert done.returncode == ExitCode.USAGE
    assert "Traceback" not in done.stderr


def test_fetch_wants_to_know_what(quantmill, there) -> None:
    assert quantmill("jobs", "fetch", "job_x", **there).returncode == ExitCode.USAGE
    assert quantmill("jobs", "fetch", "job_x", "--safetensors", "w", **there).returncode == ExitCode.USAGE
    assert quantmill("report", "no-such-file.json").returncode == ExitCode.USAGE
    assert "error[job-not-found]" in quantmill("report", "job_x", **there).stderr


def test_without_any_service_the_error_says_what_to_do(quantmill_process, tmp_path: Path) -> None:
    done = quantmill_process("jobs", "list", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == ExitCode.ERROR
    assert "error[service-not-found]" in done.stderr
    assert "QUANTMILL_SERVER" in done.stderr
    assert "warning" not in quantmill_process("--version", QUANTMILL_SERVER="http://127.0.0.1:1").stderr


def test_every_list_is_json_if_asked(quantmill, there) -> None:
    for words in (["jobs", "list"], ["queues"], ["quarantine", "list"]):
        done = quantmill(*words, "--json", **there)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) is not None


def run_on_a_terminal(folder: Path, *words: str, **variables: str) -> str:
    """What a command writes to a terminal."""
    import pty

    main, end = pty.openpty()
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(main, 65536):
                pieces.append(piece)
        except OSError:
            return  # the terminal's other end is closed

    reader = threading.Thread(target=read)
    reader.start()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
    subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", *words], stdin=end, stdout=end, stderr=end, cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **variables},
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    os.close(end)
    reader.join(PATIENCE_SECONDS)
    os.close(main)
    return b"".join(pieces).decode()


def test_a_terminal_sees_bars_and_colours_unless_it_wants_none(there, tiny: Tiny, tmp_path: Path) -> None:
    words = ["models", "push", str(tiny.model)]
    colours = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    shown = run_on_a_terminal(tmp_path, *words, **there)
    assert f"upload {tiny.model.name}" in shown
    assert colours.search(shown)
    plain = run_on_a_terminal(tmp_path, *words, NO_COLOR="1", **there)
    assert f"upload {tiny.model.name}" in plain
    assert not colours.search(plain)
    assert re.fullmatch(r"mdl_\w+\s*", run_on_a_terminal(tmp_path, *words, "--quiet", **there))


def test_shells_complete_commands() -> None:
    code = "import sys; sys.argv = ['quantmill']; from worker.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "_QUANTMILL_COMPLETE": "complete_bash",
            "COMP_WORDS": "quantmill jobs f", "COMP_CWORD": "2",
        },
    )  # fmt: skip
    assert done.stdout.split() == ["follow", "fetch"], done.stderr


def test_the_page_lists_every_exit_code() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    table = text[text.index("## Exit codes") :]
    table = table[: table.index("\n## ")]
    told = [int(number) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for number in row.split(",")]
    assert told == [code.value for code in ExitCode]
    assert {*GATE_EXITS.values(), *EXITS_BY_CODE.values()} <= set(ExitCode)
