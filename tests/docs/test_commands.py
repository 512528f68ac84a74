"""The commands of README.md and docs/ do what the pages say, on a real service, and stop at the first error."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.docs.blocks import HOW_TO, PAGES, ROOT, SERVE, check_quantized, fenced, make_workplace, run_block, served
from tests.support import services

pytestmark = pytest.mark.slow  # starts a service, or processes
DOCS = ROOT / "docs"
README, UP = fenced(ROOT / "README.md", "bash")
QUICKSTART = fenced(DOCS / "quickstart.md", "bash")
FIRST, READ, _, OVER_HTTP = QUICKSTART
HELPERS = OVER_HTTP[: OVER_HTTP.index("FILE=")]
# Pages whose blocks run in tests of their own.
ELSEWHERE = {
    DOCS / f"{page}.md": ROOT / "tests" / "docs" / f"test_{file}.py"
    for page, file in (("batches", "client"), ("how-to/nightly", "nightly_page"))
} | dict.fromkeys(HOW_TO, ROOT / "tests" / "docs" / "test_how_to.py")
# Pages whose blocks are one script.
SCRIPTS = {name: "".join(fenced(DOCS / f"{name}.md", "bash")) for name in ("cli", "http")}


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    services.require(services.tools_trouble())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service of the pages runs."""
    folder = tmp_path_factory.mktemp("up")
    make_workplace(folder)
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """The service that the README and the quickstart start."""
    with served(UP, home) as url:
        yield url


@pytest.fixture
def key(home: Path, address: str) -> str:
    """The key that the service has made."""
    return (home / ".quantmill" / "local.key").read_text().strip()


@pytest.fixture(scope="module")
def quantized(home: Path) -> Path:
    """The quickstart's folder after its first block."""
    done = run_block(FIRST, home)
    assert done.returncode == 0, done.stderr
    return home / "example"


@pytest.fixture
def example(quantized: Path, folder: Path) -> Path:
    """What the quickstart uploads, in a folder of its own."""
    shutil.copytree(quantized, folder / "example", ignore=shutil.ignore_patterns("over-http.*"))
    return folder


def report_of(path: Path) -> dict[str, Any]:
    """Of the shipped example: no decision is lost, and nothing is said against it."""
    report: dict[str, Any] = json.loads(path.read_text())
    assert (report["verdict"], report["findings"]) == ("none", [])
    assert report["quantized"]["metrics"]["top1"] >= report["float"]["metrics"]["top1"] - 0.5 > 95
    return report


def test_the_readme_quantizes_on_the_command_line(folder: Path) -> None:
    done = run_block(README, folder)
    assert done.returncode == 0, done.stderr
    report_of(folder / "report.json")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(folder / "quantized.onnx").graph.node)


def test_the_quickstart_quantizes_and_reads_the_report(quantized: Path, home: Path) -> None:
    report = report_of(quantized / "report.json")
    done = run_block(READ, home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(report["summary"])
    assert "top1" in json.loads((quantized / "evaluation.json").read_text())["metrics"][0]["name"]


def test_the_quickstart_quantizes_over_http(quantized: Path, home: Path, address: str) -> None:
    done = run_block(OVER_HTTP, home, API=address)
    assert done.returncode == 0, done.stderr
    report_of(quantized / "over-http.json")
    assert not list(home.rglob("*.part"))


@pytest.mark.long
@pytest.mark.parametrize("page", SCRIPTS)
def test_the_blocks_of_a_page_run(page: str, folder: Path, address: str, key: str) -> None:
    done = run_block(SCRIPTS[page], folder, API=address, QUANTMILL_API_KEY=key)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    check_quantized(folder / "quantized.onnx", folder)


def test_the_quickstart_stops_at_a_request_that_fails(example: Path, address: str) -> None:
    done = run_block(OVER_HTTP, example, API=address, QUANTMILL_API_KEY="wrong")
    assert done.returncode != 0
    assert "error: 401" in done.stderr
    assert not list(example.rglob("over-http.*"))


def test_the_quickstart_stops_at_what_the_service_rejects(example: Path, address: str, key: str) -> None:
    (example / "example" / "digits.onnx").write_text("broken")
    done = run_block(OVER_HTTP, example, API=address, QUANTMILL_API_KEY=key)
    assert done.returncode != 0
    assert "not-onnx" in done.stderr
    assert not list(example.rglob("over-http.*"))


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
    known = [README, UP, *QUICKSTART, *SCRIPTS.values()]
    assert all(block.startswith("set -euo pipefail") for block in known)
    assert HELPERS in SCRIPTS["http"]
    for page in PAGES:
        assert not re.findall(r"^```(sh|shell|zsh)$", page.read_text(), re.MULTILINE), page
        if page in ELSEWHERE and "run_block" in ELSEWHERE[page].read_text():
            continue
        if "".join(fenced(page, "bash")) not in ["", README + UP, "".join(QUICKSTART), *SCRIPTS.values()]:
            pytest.fail(f"the blocks of {page} are not run")


# What they do is nothing of ours; the manifests that they are given have tests of their own.
OPERATORS_TOOLS = {"git", "docker", "install", "cp", "systemctl", "helm", "kubectl"}


def test_other_commands_are_targets_of_make_or_modules_that_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for block in fenced(page, "console"):
            for line in block.replace("\\\n", " ").splitlines():
                words = [word for word in shlex.split(line, comments=True) if "=" not in word]
                if words[:2] == ["python", "-m"]:
                    assert find_spec(words[2]), line
                elif words[0] not in OPERATORS_TOOLS:
                    assert words[0] == "make" and {*words[1:]} <= targets, line
    assert SERVE in UP and UP in QUICKSTART
