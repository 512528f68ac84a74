"""The commands of README.md and docs/ do what the pages say, on a real service, and stop at the first error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, SERVE, check_quantized, fenced, make_workplace, run_block, served
from tests.support import services

pytestmark = pytest.mark.slow  # starts a service, or processes
COMMANDS, UP, OVER_HTTP = fenced(ROOT / "README.md", "bash")
HELPERS = OVER_HTTP[: OVER_HTTP.index("FILE=")]
# Pages whose blocks run in tests of their own.
ELSEWHERE = {
    ROOT / "docs" / f"{page}.md": ROOT / "tests" / "docs" / f"test_{file}.py"
    for page, file in (("batches", "client"), ("nightly", "nightly_page"))
}
# Pages whose blocks are one script.
SCRIPTS = {name: "".join(fenced(ROOT / "docs" / f"{name}.md", "bash")) for name in ("cli", "http")}


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    services.require(services.tools_trouble())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's service runs."""
    folder = tmp_path_factory.mktemp("up")
    make_workplace(folder)
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """The service that the README starts."""
    with served(UP, home) as url:
        yield url


@pytest.fixture
def key(home: Path, address: str) -> str:
    """The key that the service has made."""
    return (home / ".quantmill" / "local.key").read_text().strip()


def verdict(path: Path) -> str:
    return str(json.loads(path.read_text())["verdict"])


def test_the_readme_quantizes_on_the_command_line(folder: Path) -> None:
    (folder / "preprocessing.json").unlink()  # it makes its own
    done = run_block(COMMANDS, folder)
    assert done.returncode == 0, done.stderr
    check_quantized(folder / "quantized.onnx", folder)
    assert verdict(folder / "report.json") == "none"
    assert '"top1"' in done.stdout


def test_the_readme_quantizes_over_http(folder: Path, home: Path, address: str) -> None:
    (folder / ".quantmill").symlink_to(home / ".quantmill")
    done = run_block(OVER_HTTP, folder, API=address)
    assert done.returncode == 0, done.stderr
    check_quantized(folder / "quantized.onnx", folder)
    assert verdict(folder / "report.json") == "none"
    assert not list(folder.glob("*.part"))


@pytest.mark.long
@pytest.mark.parametrize("page", SCRIPTS)
def test_the_blocks_of_a_page_run(page: str, folder: Path, address: str, key: str) -> None:
    done = run_block(SCRIPTS[page], folder, API=address, QUANTMILL_API_KEY=key)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    check_quantized(folder / "quantized.onnx", folder)


def test_the_readme_stops_at_a_request_that_fails(folder: Path, address: str) -> None:
    done = run_block(OVER_HTTP, folder, API=address, QUANTMILL_API_KEY="wrong")
    assert done.returncode != 0
    assert "error: 401" in done.stderr
    assert not (folder / "report.json").exists()


def test_the_readme_stops_at_what_the_service_rejects(folder: Path, address: str, key: str) -> None:
    (folder / "model.onnx").write_text("broken")
    done = run_block(OVER_HTTP, folder, API=address, QUANTMILL_API_KEY=key)
    assert done.returncode != 0
    assert "not-onnx" in done.stderr
    assert not (folder / "quantized.onnx").exists()


@pytest.mark.parametrize("end", ["canceled", "failed"])
def test_waiting_goes_on_until_the_end(folder: Path, address: str, end: str) -> None:
    """A job's first answers are no end; a canceled one is an end that is no success, and one that failed says why."""
    (folder / "answers").mkdir()
    for number, state in enumerate(("queued", "running", "canceling", end)):
        error = {"detail": "It broke."} if state == "failed" else None
        (folder / "answers" / str(number)).write_text(json.dumps({"state": state, "error": error}))
    fake = 'call() { local n; n=$(cat n 2>/dev/null || echo 0); cat "answers/$n"; echo $((n + 1)) > n; }\n'
    done = run_block(HELPERS + fake + "settle jobs/one\necho went on\n", folder, API=address, QUANTMILL_API_KEY="none")
    assert done.returncode != 0
    assert ("It broke." if end == "failed" else end) in done.stderr
    assert (folder / "n").read_text().strip() == "4"
    assert "went on" not in done.stdout


def test_every_block_runs_here_and_stops_at_errors() -> None:
    known = [COMMANDS, UP, OVER_HTTP, *SCRIPTS.values()]
    assert all(block.startswith("set -euo pipefail") for block in known)
    assert HELPERS in SCRIPTS["http"]
    for page in PAGES:
        assert not re.findall(r"^```(sh|shell|zsh)$", page.read_text(), re.MULTILINE), page
        if page in ELSEWHERE and "run_block" in ELSEWHERE[page].read_text():
            continue
        if "".join(fenced(page, "bash")) not in ["", "".join((COMMANDS, UP, OVER_HTTP)), *SCRIPTS.values()]:
            pytest.fail(f"the blocks of {page} are not run")


def test_other_commands_are_targets_of_make_or_modules_that_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for block in fenced(page, "console"):
            for line in block.splitlines():
                words = [word for word in shlex.split(line, comments=True) if "=" not in word]
                if words[:2] == ["python", "-m"]:
                    assert find_spec(words[2]), line
                elif words[0] != "git":
                    assert "docker compose up" in line or (words[0] == "make" and {*words[1:]} <= targets), line
    assert SERVE in UP
