"""Hints name routes; each surface names them in its own words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from fastapi import FastAPI
from starlette.routing import Match

from service.app import create_app
from service.client import Client
from service.contracts.errors import FieldProblem, InvalidRequestError
from service.contracts.surfaces import (
    PAGES,
    ROUTE,
    SURFACES,
    for_command_line,
    for_page,
    for_python,
    rewritten,
    surface_of,
    with_options,
)
from service.dashboard.pages import environment
from service.settings import Settings
from worker.cli import app as commands

ROOT = Path(__file__).parents[3]
# Keywords of calls, and names, under which texts for users stand.
_HINTS = ("hint", "listed")


def written(node: ast.AST) -> Iterator[str]:
    """Each text in an expression, what is filled in between braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{x}" for part in node.values)  # type: ignore[misc]
    else:
        for inner in ast.iter_child_nodes(node):
            yield from written(inner)


def hints_of(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in _HINTS:
            yield from written(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and node.value is not None:
            names = (
                [ast.unparse(node.target)]
                if isinstance(node, ast.AnnAssign)
                else map(ast.unparse, getattr(node, "targets", ()))
            )
            if any(name.lower().endswith(_HINTS) for name in names):
                yield from written(node.value)


HINTS = sorted(
    {
        (str(path.relative_to(ROOT)), hint)
        for top in ("service", "worker", "quantmill")
        for path in (ROOT / top).rglob("*.py")
        for hint in hints_of(path.read_text())
    }
)
NAMED = sorted({(path, found[2]) for path, hint in HINTS for found in ROUTE.finditer(hint)})


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("app"), min_free_bytes=0))


def is_served(app: FastAPI, method: str, path: str) -> bool:
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": [], "query_string": b""}
    return any(route.matches(dict(scope))[0] is Match.FULL for route in app.routes)


def test_routes_are_named_in_hints_at_all() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("path", "route"), NAMED)
def test_each_route_in_a_hint_is_in_the_table(path: str, route: str) -> None:
    candidates = [route.replace("{x}s", f"{word}s") for word in ("model", "dataset")]
    assert all(surface_of(one) for one in candidates), (path, route)


@pytest.mark.parametrize(("path", "hint"), [one for one in HINTS if "/v1/" in one[1]])
def test_a_hint_names_each_route_by_its_method(path: str, hint: str) -> None:
    assert "/v1/" not in ROUTE.sub("", hint), (path, hint)
    assert not re.search(r"quantmill [a-z]", hint), f"{path} names a command beside a route: {hint}"


def test_a_hint_of_the_service_names_the_route_where_there_is_one_for_the_command() -> None:
    """Pages offer no route for what they cannot do, so that they may name a command."""
    known = {re.match(r"quantmill [a-z -]*[a-z]", one.command)[0] for one in SURFACES.values() if one.command}  # type: ignore[index]
    elsewhere = [one for one in HINTS if one[0].startswith("service/") and not one[0].startswith("service/dashboard/")]
    assert [(path, hint) for path, hint in elsewhere if any(command in hint for command in known)] == []


def test_the_engine_names_no_route() -> None:
    named = [path for path, hint in HINTS if path.startswith("worker/quantizer/") and "/v1/" in hint]
    assert named == []


@pytest.mark.parametrize("route", SURFACES)
def test_each_route_of_the_table_is_one_of_the_api(app: FastAPI, route: str) -> None:
    method, path = route.partition("?")[0].split()
    assert is_served(app, method, path), route
    operations = app.openapi()["paths"]
    plain = {re.sub(r"\{.*?\}", "{}", template): found for template, found in operations.items()}
    assert method.lower() in plain[re.sub(r"\{.*?\}", "{}", path)]


@pytest.mark.parametrize("command", sorted({one.command for one in SURFACES.values() if one.command}))
def test_each_command_of_the_table_is_one_of_the_command_line(command: str) -> None:
    words = command.split()[1:]
    found: Any = typer.main.get_command(commands)
    while hasattr(found, "commands"):
        assert words[0] in found.commands, command
        found = found.commands[words.pop(0)]
    options = {
        name: bool(getattr(parameter, "is_flag", False)) for parameter in found.params for name in parameter.opts
    }
    arguments = [one for one in found.params if one.param_type_name == "argument"]
    taken = 0
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            assert word in options, command
            if not options[word]:
                words.pop(0)
        else:
            taken += 1
    assert len(arguments) >= taken, command


@pytest.mark.parametrize("call", sorted({one.call for one in SURFACES.values() if one.call}))
def test_each_call_of_the_table_is_one_of_the_client(call: str) -> None:
    assert set(re.findall(r"client\.(\w+)\(", call)) <= set(dir(Client)), call


def test_each_page_is_served_and_has_a_name(app: FastAPI) -> None:
    assert {surface.page for surface in SURFACES.values()} == set(PAGES)
    assert [path for path in PAGES if not is_served(app, "GET", path)] == []


@pytest.mark.parametrize(
    ("text", "command_line", "page"),
    [
        ("GET /v1/datasets lists them.", "`quantmill datasets list` lists them.", "The Datasets page lists them."),
        (
            "Cancel it first with POST /v1/jobs/job_1/cancel.",
            "Cancel it first with `quantmill jobs cancel job_1`.",
            "Cancel it first on the job's page.",
        ),
        (
            "Try another. GET /v1/jobs/{id}?wait=25 waits.",
            "Try another. `quantmill jobs follow JOB` waits.",
            "Try another. The job's page waits.",
        ),
        (
            "Set it with PUT /v1/models/NAME@VERSION/aliases/prod.",
            "Set it with `quantmill models alias NAME@VERSION prod`.",
            "Set it on the model's page.",
        ),
        (
            "GET /v1/keys/signing shows them.",
            "`quantmill keys signing` shows them.",
            "The Keys page shows them.",
        ),
        ("PATCH /v1/webhooks/w_1 does.", "PATCH /v1/webhooks/w_1 does.", "The webhook's page does."),
        ("GET /v1/nothing is none.", "GET /v1/nothing is none.", "GET /v1/nothing is none."),
        ("curl -X POST http://x/v1/jobs", "curl -X POST http://x/v1/jobs", "curl -X POST http://x/v1/jobs"),
    ],
)
def test_a_text_is_rewritten_for_a_surface(text: str, command_line: str, page: str) -> None:
    assert for_command_line(text) == command_line
    assert for_page(text) == page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GET /v1/datasets lists them.", "`client.datasets()` lists them."),
        ("Cancel it first with POST /v1/jobs/job_1/cancel.", 'Cancel it first with `client.cancel("job_1")`.'),
        ("GET /v1/presets lists the presets.", "`quantmill presets --all` lists the presets."),
        ("The schema is at /docs, under QuantizationConfig.", "docs/config.md describes every key."),
        ("GET /v1/nothing is none.", "GET /v1/nothing is none."),
    ],
)
def test_a_text_is_rewritten_for_python(text: str, said: str) -> None:
    assert for_python(text) == said


def test_pages_that_a_text_names_are_links() -> None:
    template = environment().from_string("{{ text | on_page }}")

    def shown(text: str) -> str:
        return template.render(text=text, root="/q")

    link = '<a href="/q/jobs/job_1">the job&#39;s page</a>'
    assert shown("Cancel <it> with POST /v1/jobs/job_1/cancel.") == f"Cancel &lt;it&gt; on {link}."
    assert shown("GET /v1/jobs lists them.") == '<a href="/q/jobs">The Jobs page</a> lists them.'
    assert shown("See GET /v1/models/m@1/aliases.") == "See GET /v1/models/m@1/aliases."
    assert shown("GET /v1/jobs/{id}?wait=25 waits.") == "The job&#39;s page waits.", "of no job that is known"


def test_all_sentences_of_a_problem_are_rewritten() -> None:
    place = FieldProblem(pointer="/a", code="x", message="see GET /v1/jobs")
    problem = InvalidRequestError("No: GET /v1/jobs.", errors=(place,), hint="GET /v1/jobs lists.").problem()
    found = rewritten(problem, for_command_line)
    assert (found.detail, found.hint) == ("No: `quantmill jobs list`.", "`quantmill jobs list` lists.")
    assert found.errors[0].message == "see `quantmill jobs list`"
    assert rewritten(InvalidRequestError("No.").problem(), for_page).hint is None


@pytest.mark.parametrize(
    ("pointer", "shown"),
    [
        ("/calibration_dataset_id", "--calibration"),
        ("/config/weight", "--config at /weight"),
        ("/template/preset", "/template/preset"),
        ("", ""),
    ],
)
def test_a_field_of_a_request_is_shown_as_its_option(pointer: str, shown: str) -> None:
    place = FieldProblem(pointer=pointer, code="x", message="is wrong")
    found = with_options(InvalidRequestError(f"{pointer}: is wrong", errors=(place,)).problem())
    assert (found.detail, found.errors[0].pointer) == (f"{shown}: is wrong", shown)


def test_the_schema_is_no_hint_on_the_command_line() -> None:
    assert "/docs" not in for_command_line("The schema is at /docs.")
