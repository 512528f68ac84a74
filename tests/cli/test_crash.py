"""A fault of ours: a few lines, a file to report, and no keys in either."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import ProgrammingError

from service.contracts.base import VERSION
from service.contracts.command_errors import ExitCode
from worker import cli
from worker.commands import console, options

KEY = "s3cret-key-of-the-service"


def fail(*_: object, **__: object) -> None:
    raise LookupError(f"tensor 'x' is gone at http://user:pa55@host/ with {KEY}")


def test_an_unforeseen_error_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["quantmill", "quantize", "m.onnx", "--key", KEY])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ExitCode.INTERNAL == 70
    told = "".join(capsys.readouterr().err.split("\n"))
    assert "error[internal-error]" in told
    assert "Traceback" not in told
    (file,) = tmp_path.glob("quantmill-crash-*.txt")
    assert file.name in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    for word in (f"quantmill {VERSION}", "python 3", "Traceback", "LookupError", "command: quantmill quantize m.onnx"):
        assert word in text
    for secret in (KEY, "pa55"):
        assert secret not in text + told


@pytest.mark.parametrize("arguments", [["--key", "abc"], ["--key=abc"]])
def test_short_keys_are_hidden_in_the_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = console.write_crash(ValueError("no"), ["quantmill", "jobs", *arguments], {}).read_text()
    (command,) = re.findall("command: (.*)", text)
    assert "abc" not in command


@pytest.mark.parametrize("variable", ["QUANTMILL_API_KEY", "quantmill_Api_Key"])
def test_the_key_of_the_environment_is_hidden(variable: str) -> None:
    assert KEY not in console.without_secrets(f"with {KEY} in it", [], {variable: KEY})


def test_a_key_is_not_cut_before_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("QUANTMILL_API_KEY", KEY)
    error = console.crash_error(ValueError("x" * (300 - len("ValueError: ") - len(KEY) // 2) + KEY))
    assert "xxx" in error.detail
    assert KEY[:4] not in error.detail


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("at http://user:p@ss/w@rd@host/path,", "at http://[hidden]@host/path,"),
        ("at https://t0ken@host/", "at https://[hidden]@host/"),
        ("at http://host:8000/v1/jobs", "at http://host:8000/v1/jobs"),
        ("postgresql://host/db?user=me&password=w@rd&sslmode=on", "postgresql://host/db?user=me&password=[hidden]&sslmode=on"),
        ("http://host/?access_token=abc#top 'http://host/?Key=abc'", "http://host/?access_token=[hidden]#top 'http://host/?Key=[hidden]'"),
        ("http://u:p@host/?token=abc", "http://[hidden]@host/?token=[hidden]"),
        ("the key=value of a node", "the key=value of a node"),
    ],
)  # fmt: skip
def test_secrets_in_addresses_are_hidden(text: str, left: str) -> None:
    assert console.without_secrets(text, [], {}) == left


def test_an_odd_file_name_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    odd = os.fsdecode(b"m\xff.onnx")
    monkeypatch.setattr(cli, "app", lambda: {}[odd + "\u00e9"])
    monkeypatch.setattr(sys, "argv", ["quantmill", "inspect", odd])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ExitCode.INTERNAL
    (file,) = tmp_path.glob("quantmill-crash-*.txt")
    text = file.read_text(encoding="utf-8")
    assert "command: quantmill inspect m\\udcff.onnx" in text
    assert b"KeyError: " in capfdbinary.readouterr().err


@pytest.mark.slow
def test_the_file_does_not_depend_on_the_locale(tmp_path: Path) -> None:
    code = (
        "from worker.commands import console; error = console.crash_error(ValueError('\\u00e9 \\udcff'));"
        " print(ascii(error.detail)); print(error.detail)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8",
             "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\\udcff" in done.stdout
    (file,) = tmp_path.glob("quantmill-crash-*.txt")
    assert "\u00e9 \\udcff" in file.read_text(encoding="utf-8")


def test_a_database_that_is_not_there_is_no_fault_of_ours(quantmill, tmp_path):
    url = "postgresql://user:pa55@127.0.0.1:1/none"
    done = quantmill("migrate", QUANTMILL_DATABASE_URL=url, QUANTMILL_DATA_DIR=str(tmp_path / "home"), code=1)
    assert "error[database-unavailable]" in done.stderr
    assert "QUANTMILL_DATABASE_URL" in done.stderr
    assert "pa55" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "system-refusal", "Connection refused."),
        (MemoryError(), "resource-limit", "memory"),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), "engine-missing", "onnx"),
    ],
)
def test_what_a_user_can_act_on_has_its_words(error: Exception, code: str, told: str) -> None:
    typed = options.typed_error(error)
    assert typed is not None and typed.code == code
    assert told in typed.detail


@pytest.mark.parametrize(
    "error",
    [
        OSError("words of a library"),
        ModuleNotFoundError("No module named 'ours'", name="ours"),
        ProgrammingError("select", {}, Exception("no such column")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_we_do_wrong_stays_a_fault_of_ours(error: Exception) -> None:
    assert options.typed_error(error) is None


def test_without_a_place_for_the_file_the_fault_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    error = console.crash_error(ValueError("something"))
    assert error.code == "internal-error"
    assert "ValueError: something" in error.detail
    assert "No space left" in error.detail
