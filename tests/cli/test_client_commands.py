"""``models push``, ``datasets push``, ``jobs submit|fetch``, and what all commands share."""

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

from service.contracts.command_errors import EXITS_BY_CODE, GATE_EXITS, ExitCode
from service.contracts.report import Report
from tests.cli.conftest import KEY, ROOT, Ask, Quantmill
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny, make_model
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service, or a process


@pytest.fixture
def there(service: Service) -> dict[str, str]:
    """The variables that name the service."""
    return {"QUANTMILL_SERVER": service.url, "QUANTMILL_API_KEY": KEY}


@pytest.fixture
def submit(uploaded: dict[str, str]) -> list[str]:
    nouns = [word for noun in ("model", "calibration", "evaluation") for word in (f"--{noun}", uploaded[noun])]
    return ["jobs", "submit", *nouns]


def test_from_files_to_results_without_naming_the_service_again(quantmill, there, tiny: Tiny, tmp_path: Path) -> None:
    described = ("--description", "as of Tuesday", "--tag", "team=audio", "--tag", "of=ci")
    model = quantmill("models", "push", tiny.model, "--name", "tiny", *described, **there, code=0)
    assert re.fullmatch(r"mdl_\w+\n", model.stdout)
    data = quantmill("datasets", "push", tiny.calibration, "--name", "tiny", *described, "--json", **there)
    pushed = json.loads(quantmill("models", "show", "tiny@latest", "--json", **there).stdout), json.loads(data.stdout)
    for made in pushed:
        assert (made["tags"], made["description"]) == ({"team": "audio", "of": "ci"}, "as of Tuesday")
        assert (made["name"], made["status"]) == ("tiny", "ready")
    done = quantmill(
        "jobs", "submit", "--model", model.stdout.strip(), "--calibration", json.loads(data.stdout)["id"],
        "--preset", "int8", "--name", "nightly", "--label", "build=7", "--label", "branch=a=b", "--priority", 3,
        "--wait", "--timeout", PATIENCE_SECONDS, **there, code=0,
    )  # fmt: skip
    job_id, _, rest = done.stdout.partition("\n")
    assert "Succeeded, no gate: " in rest
    shown = json.loads(quantmill("jobs", "show", job_id, "--json", **there).stdout)
    assert (shown["name"], shown["labels"], shown["priority"]) == ("nightly", {"build": "7", "branch": "a=b"}, 3)
    assert shown["state"] == "succeeded"
    fetched = quantmill(
        "jobs", "fetch", job_id, "--output", "q.onnx", "--report", "r.json", "--html", "r.html",
        "--extra-dir", "more", "--safetensors", "w.safetensors", "--json", **there, code=0,
    )  # fmt: skip
    told = json.loads(fetched.stdout)
    kinds = {file["kind"]: file["path"] for file in told["files"]}
    assert (told["job"], told["verdict"]) == (job_id, "none")
    assert {"model": "q.onnx", "report": "r.json", "html": "r.html"}.items() <= kinds.items()
    assert all((tmp_path / path).exists() for path in kinds.values())
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert (tmp_path / "q.onnx").stat().st_size == report.quantized.size_bytes
    weights = {tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert set(load_file(tmp_path / "w.safetensors")) == weights


def test_external_data_is_pushed_and_a_rejected_model_is_an_error(ask: Ask, tmp_path: Path) -> None:
    make_model(tmp_path / "net.onnx", external="net.data")
    pushed = json.loads(ask("models", "push", "net.onnx", "--no-wait", "--json"))
    assert {file["path"] for file in pushed["files"]} == {"net.onnx", "net.data"}
    (tmp_path / "net.data").unlink()
    assert "error[external-data]" in ask("models", "push", "net.onnx", code=1)
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    assert "error[not-onnx]" in ask("models", "push", "net.onnx", code=1)


def test_a_dry_run_tells_what_a_job_would_take_and_submits_nothing(ask: Ask, submit) -> None:
    count = ("jobs", "list", "--limit", 100, "--json")
    before = json.loads(ask(*count))
    told = ask(*submit, "--preset", "int8_accurate", "--dry-run")
    assert re.search(r"^estimate +about \S+ \w+ \(.+ to .+\), .+ of memory, model size .+, finished about ", told, re.M)
    found = json.loads(ask(*submit, "--dry-run", "--json"))
    assert found["estimate"]["basis"] in ("timed", "history")
    assert found["estimated_finish_at"] is not None
    assert json.loads(ask(*count)) == before


def test_quiet_and_json_say_no_more_and_the_same_word_makes_no_second_job(quantmill, there, submit) -> None:
    once = (*submit, "--idempotency-key", "build-7", "--wait")
    quiet = quantmill(*once, "--quiet", **there)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert re.fullmatch(r"job_\w+\n", quiet.stdout)
    told = quantmill(*once, "--json", "-q", **there)
    assert (json.loads(told.stdout)["state"], told.stderr) == ("succeeded", "")
    assert json.loads(told.stdout)["id"] == quiet.stdout.strip()
    followed = quantmill("jobs", "follow", quiet.stdout.strip(), "--quiet", **there)
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, "", "")


def test_a_failed_gate_and_no_patience_have_codes_of_their_own(
    quantmill, there, ask: Ask, submit, service: Service, tmp_path: Path
) -> None:
    (tmp_path / "hard.json").write_text(json.dumps({"evaluation": {"gate": {"min_sqnr_db": 200}}}))
    hard = (*submit, "--config", "hard.json", "--wait")
    done = quantmill(*hard, "--fail-on-gate", **there)
    assert done.returncode == ExitCode.GATE_FAILED == 3
    job_id = done.stdout.partition("\n")[0]
    ask("jobs", "follow", job_id, "--fail-on-gate", code=ExitCode.GATE_FAILED)
    ask("jobs", "follow", job_id)
    impatient = quantmill(*hard, "--timeout", 0, **there)
    assert impatient.returncode == ExitCode.WAIT_TIMEOUT == 5
    assert "error[wait-timeout]" in impatient.stderr
    assert service.client.cancel(impatient.stdout.strip()).id == impatient.stdout.strip()


def test_without_any_service_the_error_says_what_to_do(quantmill_process, tmp_path: Path) -> None:
    done = quantmill_process("jobs", "list", XDG_STATE_HOME=str(tmp_path), code=ExitCode.ERROR)
    assert "error[service-not-found]" in done.stderr
    assert "QUANTMILL_SERVER" in done.stderr


def run_on_a_terminal(folder: Path, *command: str, **variables: str) -> str:
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
        [sys.executable, "-P", "-m", "worker.cli", *command], stdin=end, stdout=end, stderr=end, cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **variables},
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    os.close(end)
    reader.join(PATIENCE_SECONDS)
    os.close(main)
    return b"".join(pieces).decode()


def test_a_terminal_sees_bars_and_colours_unless_it_wants_none(there, tiny: Tiny, tmp_path: Path) -> None:
    push = ["models", "push", str(tiny.model), "--no-wait"]
    colours = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    shown = run_on_a_terminal(tmp_path, *push, **there)
    assert f"upload {tiny.model.name}" in shown
    assert colours.search(shown)
    plain = run_on_a_terminal(tmp_path, *push, NO_COLOR="1", **there)
    assert f"upload {tiny.model.name}" in plain
    assert not colours.search(plain)
    assert re.fullmatch(r"mdl_\w+\s*", run_on_a_terminal(tmp_path, *push, "--quiet", **there))


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


def test_an_empty_variable_counts_as_not_set(quantmill: Quantmill, service: Service, tmp_path: Path) -> None:
    """``QUANTMILL_SERVER=`` in a CI's settings is no address; what is given on the command line holds."""
    blank = {"QUANTMILL_SERVER": "", "QUANTMILL_API_KEY": "", "QUANTMILL_PORT": "", "QUANTMILL_DATA_DIR": ""}
    done = quantmill("jobs", "list", code=1, XDG_STATE_HOME=str(tmp_path), **blank)
    assert "error[service-not-found]: No service is given" in done.stderr
    assert quantmill("jobs", "list", "--server", service.url, "--key", KEY, code=0, **blank).stderr == ""
    assert quantmill("presets", "int8", code=0, **blank).stderr == ""
